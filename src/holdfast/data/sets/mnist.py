"""MNIST: 60000 and 10000 handwritten digits of 28x28 pixels (LeCun, Cortes and Burges)."""

from pathlib import Path

from holdfast.data.readers.idx import load_four
from holdfast.data.split import DataSet

_PUBLISHED = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}

_GET = "torchvision.datasets.MNIST(DIR, download=True) leaves LeCun's four files in DIR/MNIST/raw"


def load(folder: Path | None, *, valid: float | int, seed: int, verify: bool = True) -> DataSet:
    """Load MNIST from its four idx files; ``verify`` checks that they are the published files."""
    return load_four("mnist", folder, tuple("0123456789"), _PUBLISHED, _GET, valid=valid, seed=seed, verify=verify)
