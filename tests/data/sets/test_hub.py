import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from holdfast import data as named
from holdfast.data.sets import hub
from pictures import bomb, flat

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Image:
    def __init__(self, decode=True):
        self.decode = decode


class Rows:
    """The subset of datasets.Dataset that is used; images are returned encoded only after the cast."""

    def __init__(self, columns, features):
        self.columns, self.features = columns, features

    def cast_column(self, name, feature):
        return Rows(self.columns, {**self.features, name: feature})

    def __getitem__(self, name):
        assert not isinstance(self.features[name], Image) or not self.features[name].decode
        return iter(self.columns[name])  # a lazy column, as in later releases


def rows(many, image="image", label="label", names=("ant", "bee"), color=lambda y: (100 * y, 0, 9)):
    images = [{"bytes": flat(color(i % 2)), "path": None} for i in range(many)]
    kind = SimpleNamespace(names=list(names)) if names else SimpleNamespace()
    return Rows({image: images, label: [i % 2 for i in range(many)]}, {image: Image(), label: kind})


@pytest.fixture
def library(monkeypatch):
    """A fake of the package; ``parts`` is the content of the hub."""
    module = ModuleType("datasets")
    module.Image, module.asked, module.__version__ = Image, [], "4.0.0"
    module.parts = {"train": rows(12), "test": rows(4)}

    def load_dataset(name, revision):
        module.asked.append((name, revision))
        if isinstance(module.parts, Exception):
            raise module.parts
        return module.parts

    module.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    return module


def load(name=f"owner/set@{COMMIT}", **change):
    return named.load(f"hub:{name}", **{"valid": 2, **change})


@pytest.mark.parametrize("image", ["image", "img"])
@pytest.mark.parametrize("label", ["label", "labels", "fine_label"])
def test_images_and_labels_stay_together(library, image, label):
    library.parts = {"train": rows(12, image, label), "test": rows(4, image, label)}
    data = load()
    assert library.asked == [("owner/set", COMMIT)]
    assert (data.name, data.shape, data.classes) == (f"hub:owner/set@{COMMIT}", (3, 3, 4), ("ant", "bee"))
    assert (len(data.train), len(data.valid), len(data.test)) == (10, 2, 4)
    for split in (data.train, data.valid, data.test):
        assert split.x.dtype == torch.uint8
        assert torch.equal(split.x[:, 0, 0, 0].long(), 100 * split.y)
        assert torch.equal(split.y, split.index % 2)


def test_validation_is_used_as_test_or_validation_set(library):
    library.parts = {"train": rows(12), "validation": rows(6)}
    assert len(load().test) == 6
    library.parts = {"train": rows(12), "validation": rows(6), "test": rows(4), "unsupervised": None}
    data = load()
    assert (len(data.train), len(data.valid), len(data.test)) == (12, 6, 4)


def test_grayscale_images_have_one_channel_and_unnamed_classes_are_numbered(library):
    library.parts = {part: rows(n, names=None, color=lambda y: 100 * y) for part, n in (("train", 12), ("test", 4))}
    data = load()
    assert (data.shape, data.classes) == ((1, 3, 4), ("0", "1"))


NOT_PINNED = ["", "set", "owner/set", "owner/set@", "owner/set@main", f"owner/set@{COMMIT[:39]}"]
NOT_ON_THE_HUB = ["set", "../set", "a/b/c", "/a/b", "imagefolder", "owner/s\u00ebt"]


@pytest.mark.parametrize("name", [*NOT_PINNED, *(f"{name}@{COMMIT}" for name in NOT_ON_THE_HUB)])
def test_names_without_a_full_commit_are_refused(library, name):
    with pytest.raises(ValueError, match=r"does not name a data set; write hub:OWNER/NAME@ and a commit of 40 hex"):
        load(name)
    assert not library.asked


def test_a_missing_name_is_refused(library):
    with pytest.raises(ValueError, match="hub: does not name a data set"):
        hub.load(None, valid=2, seed=0)


def test_a_local_folder_of_the_same_name_is_refused(library, tmp_path, monkeypatch):
    (tmp_path / "owner" / "set").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="would be read from the folder owner/set here instead"):
        load()
    assert not library.asked


def test_the_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        ImportError, match=r"needs the package datasets.*; run: pip install 'holdfast\[hub\]'"
    ) as refusal:
        load()
    assert "\n" not in str(refusal.value)


def test_errors_of_the_hub_are_reported_in_one_sentence(library):
    library.parts = ConnectionError("cannot reach\nthe hub")
    with pytest.raises(
        FileNotFoundError, match=r"could not be had \(cannot reach the hub\); check the name"
    ) as refusal:
        load()
    assert "\n" not in str(refusal.value)


def changed(**change):
    found = rows(12)
    found.columns |= change
    return found


def without(column):
    found = rows(12)
    found.features = {name: kind for name, kind in found.features.items() if name != column}
    return found


MALICIOUS = {
    "no test": ({"train": rows(4)}, "has the parts train but train and test"),
    "no train": ({"test": rows(4)}, "has the parts test but train and test"),
    "no image": ({"train": without("image"), "test": rows(4)}, "has the columns label but one called image or img"),
    "no label": (
        {"train": without("label"), "test": rows(4)},
        "but one called label or labels or fine_label is needed",
    ),
    "path": (
        {"train": changed(image=[{"bytes": None, "path": "/etc/passwd"}] * 12), "test": rows(4)},
        "has 12 images that are not stored inside it",
    ),
    "no picture": ({"train": rows(4), "test": changed(image=[None] * 12)}, "test has 12 images that are not stored"),
    "bomb": (
        {"train": rows(4), "test": changed(image=[{"bytes": bomb(60000, 60000)}] * 12)},
        "image 0 of hub:owner/set@.* test cannot be read as .*decompression bomb",
    ),
    "hidden labels": ({"train": rows(4), "test": changed(label=[-1] * 12)}, "labels from -1 to -1"),
    "text for a picture": ({"train": changed(image=["x"] * 12), "test": rows(4)}, "has 12 images that are not stored"),
    "huge labels": ({"train": changed(label=[2**64 - 1] * 12), "test": rows(4)}, "not whole numbers of 64 bits"),
    "words": ({"train": changed(label=["ant"] * 12), "test": rows(4)}, "train has labels that are not whole numbers"),
}


@pytest.mark.parametrize("name", MALICIOUS)
def test_unsuitable_data_sets_are_refused_in_one_sentence(library, name):
    library.parts, message = MALICIOUS[name]
    with pytest.raises(ValueError, match=message) as refusal:
        load()
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("version", ["3.6.0", "2.19.1", "", "dev", None])
def test_versions_of_datasets_that_run_scripts_are_refused(library, version):
    library.__version__ = version
    with pytest.raises(ImportError, match=r"needs datasets 4 or later, as earlier ones run programs") as refusal:
        load()
    assert "\n" not in str(refusal.value)
    assert not library.asked


def test_a_column_without_images_is_refused(library, monkeypatch):
    def refuse(*_):
        raise TypeError("Couldn't cast array of type\nint64 to Image")

    monkeypatch.setattr(Rows, "cast_column", refuse)
    with pytest.raises(ValueError, match="has a column 'image' that does not hold images") as refusal:
        load()
    assert "\n" not in str(refusal.value)
