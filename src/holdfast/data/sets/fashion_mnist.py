"""Fashion-MNIST: 60000 and 10000 articles of clothing of 28x28 pixels (Xiao, Rasul and Vollgraf 2017)."""

from pathlib import Path

from holdfast.data.readers.idx import load_four
from holdfast.data.split import DataSet

_CLASSES = (
    "T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip
_PUBLISHED = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}

_GET = "torchvision.datasets.FashionMNIST(DIR, download=True) leaves Zalando's four files in DIR/FashionMNIST/raw"


def load(folder: Path | None, *, valid: float | int, seed: int, verify: bool = True) -> DataSet:
    """Load Fashion-MNIST from its four idx files; ``verify`` checks that they are the published files."""
    return load_four("fashion-mnist", folder, _CLASSES, _PUBLISHED, _GET, valid=valid, seed=seed, verify=verify)
