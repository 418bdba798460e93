import importlib
import inspect
import pkgutil
import subprocess
import sys

import numpy as np
import pytest
import torch

from holdfast import data

KEYWORDS = ["valid", "seed", "verify"]


def members():
    return [info.name for info in pkgutil.iter_modules(data.sets.__path__) if not info.name.startswith("_")]


def test_the_file_name_is_the_recipe_name():
    assert data.names() == sorted(file.replace("_", "-") for file in members())
    assert {
        "digits",
        "mnist",
        "fashion-mnist",
        "npz",
        "cifar10",
        "tiny-imagenet",
        "image-folder",
        "libsvm",
        "hub",
        "usps",
        "pendigits",
        "satimage",
        "splice",
        "letter",
        "segment",
    } == set(data.names())


@pytest.mark.parametrize("name", data.names())
def test_every_set_has_the_same_signature_and_a_description(name):
    module = importlib.import_module(f"holdfast.data.sets.{name.replace('-', '_')}")
    parameters = inspect.signature(module.load).parameters
    optional = ["size"] if name == "image-folder" else []  # images on disk have any size
    assert list(parameters) == ["folder", *KEYWORDS, *optional]
    assert all(parameters[word].kind is inspect.Parameter.KEYWORD_ONLY for word in (*KEYWORDS, *optional))
    assert all(parameters[word].default is None for word in optional)
    assert parameters["verify"].default is True
    assert module.__doc__
    assert module.load.__doc__
    public = [
        key for key, value in vars(module).items() if inspect.isfunction(value) and value.__module__ == module.__name__
    ]
    assert {key for key in public if not key.startswith("_")} in ({"load"}, {"load", "load_test"})


def test_load_by_name_passes_all_arguments():
    found, direct = (
        data.load("digits", valid=50, seed=4),
        importlib.import_module("holdfast.data.sets.digits").load(valid=50, seed=4),
    )
    assert found.digest == direct.digest
    assert torch.equal(found.valid.index, direct.valid.index)


@pytest.mark.parametrize(
    ("given", "near"),
    [
        ("mnst", "mnist"),
        ("fashion_mnist", "fashion-mnist"),
        ("Digits", "digits"),
        ("digits:x", "digits"),
        ("CIFAR-10", "cifar10"),
        ("tinyimagenet", "tiny-imagenet"),
        ("image_folder:x", "image-folder"),
    ],
)
def test_unknown_names_are_answered_with_the_most_similar_one(given, near):
    with pytest.raises(ValueError, match=f"unknown data set '{given}'; did you mean '{near}.*npz:PATH"):
        data.load(given)


@pytest.mark.parametrize("given", ["", "split", "samplers", "own", "augment", "_idx", "os", "../x", "zzzz", ":x"])
def test_private_modules_are_not_data_sets(given):
    with pytest.raises(ValueError, match=f"unknown data set '{given}'"):
        data.load(given)


@pytest.fixture
def own(tmp_path):
    x, y = np.linspace(0, 1, 24, dtype=np.float32).reshape(12, 2), np.arange(12) % 2
    (tmp_path / "deep").mkdir()
    np.savez(tmp_path / "deep" / "mine.npz", x_train=x, y_train=y, x_test=x[:3], y_test=y[:3])
    return tmp_path


def test_own_arrays_by_path(own, monkeypatch):
    monkeypatch.delenv("HOLDFAST_DATA", raising=False)
    assert len(data.load(f"npz:{own}/deep/mine.npz", valid=2).test) == 3
    assert len(data.load("npz:deep/mine.npz", own, valid=2).test) == 3
    assert len(data.load("npz", own / "deep" / "mine.npz", valid=2).test) == 3
    monkeypatch.chdir(own)
    assert len(data.load("npz:deep/mine.npz", valid=2).test) == 3


@pytest.mark.parametrize("name", ["npz", "libsvm", "image-folder", "imagefolder"])
def test_paths_are_relative_to_the_data_folder_or_the_working_directory(tmp_path, monkeypatch, name):
    monkeypatch.delenv("HOLDFAST_DATA", raising=False)
    (tmp_path / "mine").mkdir()
    with pytest.raises(FileNotFoundError, match=f"{tmp_path}/mine"):
        data.load(f"{name}:mine", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"(at|files|needs) absent"):
        data.load(f"{name}:absent", tmp_path)


def test_own_arrays_under_the_environment(own, monkeypatch):
    monkeypatch.setenv("HOLDFAST_DATA", str(own))
    assert len(data.load("npz:deep/mine.npz", valid=2).test) == 3
    with pytest.raises(FileNotFoundError, match=r"no \.npz file at deep/other\.npz"):
        data.load("npz:deep/other.npz", valid=2)


def test_listing_the_sets_does_not_import_scikit_learn_or_datasets():
    code = "import sys, holdfast.data; holdfast.data.names(); print({'sklearn', 'datasets'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "set()"
