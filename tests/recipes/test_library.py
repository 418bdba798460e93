"""Every recipe of the library holds the published settings, can be trained and evaluated, and has a small variant."""

import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.data.augment import Augment, Flip, PadCrop
from holdfast.recipes import schema, source
from holdfast.recipes.schema import Recipe
from holdfast.recipes.tables.attack import TransferConfig
from holdfast.records.records import Records
from holdfast.run import study
from holdfast.run.session import Session
from holdfast.run.subjects.trained import Trained
from published_files import write_all

Call = Callable[..., SimpleNamespace]
PAGE = (Path(__file__).parents[2] / "docs/variants.md").read_text(encoding="utf-8")
TRAINED = [name for name in source.names() if schema.load(name).methods]
# the same models as those of another recipe, under other attacks
JUDGED_BESIDES = {
    "cifar10-convnet-judged": "cifar10-convnet",
    "cifar10-convnet-l0-l2": "cifar10-convnet",
    "mnist-lenet-l0-l2-medium": "mnist-lenet-medium",
    "mnist-mlp-l0-l2-medium": "mnist-mlp-medium",
    "mnist-mlp-narrow-l0-l2-medium": "mnist-mlp-narrow-medium",
}
MEDIUM = [name for name in TRAINED if name.endswith("-medium")]
FULL = [name for name in TRAINED if not name.endswith(("-small", "-medium")) and name not in JUDGED_BESIDES]
SMALL_ONLY = {
    "certified-fashion-mnist-small",
    "certified-mnist-small",
    "digits-sphere-small",
    "mnist-defences-small",
    "mnist-linearity-small",
    "mnist-llr-ablation-small",
    "mnist-sphere-small",
}
NARROW = {
    "convnet": ("width=8",),
    "lenet": ("width=8", "channels=2"),
    "mlp": ("width=8",),
    "resnet20": ("width=16",),
    "resnet50": ("width=32",),
    "tiny": ("width=8", "channels=1"),
    "wrn": ("width=16", "depth=10"),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_all(tmp_path_factory.mktemp("data"))


def reduced(recipe: Recipe) -> Iterator[str]:
    """Changes that shrink every part of a recipe: narrow networks, a few training steps, short attacks on 4 samples."""
    yield from ("data.verify=false", "data.valid=10", "train.validate_samples=4", "craft.steps=1", "validate.steps=1")
    yield from (f"model.{change}" for change in NARROW[recipe.model.encoder])
    batch = 700 if recipe.data.name == "digits" else 15
    yield from ("evaluate.samples=4", "threads=1", f"seeds={[0, 1][: len(recipe.seeds)]}")
    if recipe.certify is not None:
        yield "certify.samples=4"
    for name, certifier in recipe.certificates.items():
        yield f"certificates.{name}.n=100" if hasattr(certifier, "n") else f"certificates.{name}.radii=[0.1]"
    if recipe.evaluate.curve:
        yield "evaluate.eps=[0.05]"
    for name, entry in recipe.methods.items():
        yield f'methods."{name}".train.epochs=1'
        yield f'methods."{name}".train.batch={batch}'
        if hasattr(entry.method, "pool"):
            yield f'methods."{name}".pool=10'
    for name, attack in recipe.attacks.items():
        if isinstance(attack, TransferConfig):
            yield f'attacks."{name}".attack.steps=1'
        for option in ("steps", "restarts"):
            if getattr(attack, option, 1) > 1:
                yield f'attacks."{name}".{option}=2'


@pytest.mark.parametrize("name", TRAINED)
def test_every_recipe_trains_and_evaluates(name: str, files: Path, tmp_path: Path) -> None:
    recipe = schema.load(name, list(reduced(schema.load(name))))
    session = Session.open(recipe, tmp_path, files, "cpu", lambda *progress: None)
    trained = Trained(session)
    *_, last = recipe.methods
    for method in recipe.methods:
        trained.prepare(method, 0)
    sources = {getattr(attack, "source", "self") for attack in recipe.attacks.values()} - {"self"}
    for seed in recipe.seeds:
        for method in (last, *sorted(sources)):  # a transfer needs the other seed too
            trained.prepare(method, seed)
    study.evaluate(session, study.rows(recipe, name=last, seed=0))
    records = Records.load(tmp_path / last / "seed-0" / "records")
    assert len(records) == 4
    assert set(schema.load(name).attacks) <= set(records.attacks)


def test_every_recipe_has_a_small_variant_of_the_same_study() -> None:
    assert set(TRAINED) == {*FULL, *(f"{name}-small" for name in FULL), *SMALL_ONLY, *MEDIUM, *JUDGED_BESIDES}
    for name in FULL:
        full, small = schema.load(name), schema.load(f"{name}-small")
        assert (small.data.name, small.threat, small.model.encoder) == (full.data.name, full.threat, full.model.encoder)
        assert small.methods.keys() == full.methods.keys()
        assert full.attacks.keys() - small.attacks.keys() <= {"transfer", "PGD-100 x 20"}
        work = [sum(e.train.epochs for e in r.methods.values()) * len(r.seeds) for r in (small, full)]
        assert work[0] < work[1]


def work(name: str) -> float:
    """Epochs, each as long as its crafting, over all methods and seeds."""
    recipe = schema.load(name)
    crafting = [getattr(getattr(e.method, "attack", None), "steps", 0) + 1 for e in recipe.methods.values()]
    epochs = [e.train.epochs for e in recipe.methods.values()]
    return len(recipe.seeds) * sum(a * b for a, b in zip(crafting, epochs, strict=True)) / len(epochs)


@pytest.mark.parametrize("name", MEDIUM)
def test_medium_recipes_lie_between_the_small_and_the_published_ones(name: str) -> None:
    full = {"mnist-mlp-narrow-medium": "mnist-mlp-medium", "mnist-mlp-triplet-medium": "mnist-lenet-lambda-medium"}
    base = full.get(name, name).removesuffix("-medium").replace("mnist-mlp-narrow-l0-l2", "mnist-lenet-l0-l2")
    base = base.replace("mnist-mlp-l0-l2", "mnist-lenet-l0-l2")
    assert work(f"{base}-small") < work(name) < work(base)
    assert len(schema.load(name).seeds) == 2


@pytest.mark.parametrize(("name", "trained"), JUDGED_BESIDES.items())
def test_models_judged_by_other_attacks_are_trained_as_those_of_the_other_recipe(name: str, trained: str) -> None:
    one, other = schema.load(name), schema.load(trained)
    assert one.methods.items() <= other.methods.items()
    assert (one.data, one.model, one.threat, one.validate) == (other.data, other.model, other.threat, other.validate)
    assert one.attacks != other.attacks


def test_the_narrow_perceptron_has_every_setting_of_tables_8_to_10() -> None:
    recipe = schema.load("mnist-mlp-triplet-medium")
    found = {(m.lambda1, m.margin, m.layer) for m in (tla(recipe.name, name) for name in recipe.methods)}
    hidden = [f"encoder.layers.{n}" for n in (1, 2)]
    wanted = {(value, 0.05, None) for value in (0, 0.025, 0.5, 1, 2, 4)}
    wanted |= {(2, margin, None) for margin in (0, 0.025, 0.05, 0.1, 0.2)}
    wanted |= {(2, 0.05, layer) for layer in (*hidden, None, "logits")}
    assert found == wanted
    assert len(recipe.methods) == len(wanted) == 13  # of fifteen settings, since one is in all three tables


def test_the_recipes_of_the_l0_l2_table_have_its_attacks() -> None:
    for name in (name for name in TRAINED if "l0-l2" in name):
        recipe = schema.load(name)
        assert set(recipe.attacks) == {"JSMA", "PGD-L2", "CW-L2", "DeepFool"}
        assert list(recipe.methods) == ["AT", "ALP", "TLA"]


def tla(name: str, method: str = "TLA") -> Any:
    return schema.load(name).methods[method].method


def test_table_1_has_six_methods_and_all_attack_columns() -> None:
    columns = {
        "mnist-lenet": "FGSM BIM-40 C&W-40 PGD-40 PGD-100 PGD-100x20 MIM-200 transfer",
        "cifar10-wrn": "FGSM BIM-7 C&W-30 PGD-7 PGD-20 PGD-20x20 MIM-40 transfer",
        "tiny-imagenet-resnet50": "FGSM BIM-10 C&W-10 PGD-10 PGD-20 PGD-20x20 MIM-40 transfer",
    }
    for name, expected in columns.items():
        recipe = schema.load(name)
        assert {attack.replace(" ", "") for attack in recipe.attacks} == set(expected.split())
        assert set(recipe.methods) == {"plain", "AT", "ALP", "TLA", "TLA-RN", "TLA-SA"}
        assert (tla(name, "TLA-RN").negative, tla(name, "TLA-SA").anchor) == ("random", "clean")
        assert tla(name, "ALP").weight == 0.5


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("mnist-lenet", (0.5, 0.001, 0.05, 50, 0.1)),
        ("cifar10-convnet", (2, 0.001, 0.03, 500, 0)),
        ("cifar10-wrn", (2, 0.001, 0.03, 500, 0)),
        ("tiny-imagenet-resnet50", (0.2, 0.001, 0.01, 50, 0.1)),
    ],
)
def test_tla_has_the_published_weights(name: str, published: tuple[float, ...]) -> None:
    recipe = schema.load(name)
    variants = [method for method in recipe.methods if method.startswith("TLA")]
    for variant in variants:
        m = tla(name, variant)
        assert (m.lambda1, m.lambda2, m.margin, m.pool, m.smoothing) == published


@pytest.mark.parametrize("name", ["cifar10-convnet", "cifar10-wrn"])
def test_cifar10_has_the_published_training_settings(name: str) -> None:
    config, craft = schema.load(name).methods["TLA"].train, tla(name).attack
    steps = 45000 // config.batch
    assert (config.batch, config.optimizer.lr, config.optimizer.weight_decay) == (50, 0.1, 2e-4)
    assert abs(config.epochs * steps - 55_000) < steps
    assert config.schedule.at[0] * steps == pytest.approx(50_000)
    assert (craft.steps, craft.step, craft.threat.eps) == (7, pytest.approx(2 / 255), pytest.approx(8 / 255))
    assert config.augment == Augment(pad_crop=PadCrop(pad=2), flip=Flip())


def test_tla_ablations_vary_one_option() -> None:
    lambdas = {f"lambda {value:g}": value for value in (0, 0.025, 0.5, 1, 2, 4)}
    margins = {f"margin {value:g}": value for value in (0, 0.025, 0.05, 0.1, 0.2)}
    layers = {"lower": "encoder.layers.6", "middle": "encoder.layers.13", "higher": None, "logits": "logits"}
    for name, option, values in [
        ("mnist-lenet-lambda", "lambda1", lambdas),
        ("mnist-lenet-margin", "margin", margins),
        ("mnist-lenet-layer", "layer", layers),
    ]:
        recipe = schema.load(name)
        assert {method: getattr(tla(name, method), option) for method in recipe.methods} == values
        tables = list(recipe.table()["methods"].values())
        for table in tables:
            table.pop(option)
        assert all(table == tables[0] for table in tables)
        assert list(recipe.attacks) == ["PGD-100"]


@pytest.mark.parametrize("name", ["tiny-imagenet-resnet20", "tiny-imagenet-resnet50-stride1"])
def test_table_7_fine_tunes_tla_from_at(name: str) -> None:
    for variant in (name, f"{name}-small"):
        recipe = schema.load(variant)
        starts = {method: entry.train.init_from for method, entry in recipe.methods.items()}
        assert starts == {"plain": None, "AT": None, "ALP": None, "TLA": "AT"}
        assert (recipe.model.stem_stride, recipe.model.extra_blocks) == (1, 0)
    assert schema.load(name).methods["TLA"].train.optimizer.lr == 1e-4


def settings(method: Any, names: str) -> list[Any]:
    return [getattr(method, name) for name in names.split()]


def test_code_recipes_hold_the_configuration_of_the_tla_code() -> None:
    names = "lambda1 lambda2 margin copy_margin matching pool positive noise norm signed_search smoothing"
    mnist, imagenet = tla("mnist-mlp-code"), tla("tiny-imagenet-resnet50-code")
    assert settings(mnist, names) == [0.5, 1e-4, 0.05, None, 0, 50, "class", "none", "mean_square", True, 0]
    assert settings(imagenet, names) == [0.5, 1e-3, 0.02, 0.02 * 30, 0.5, 20, "both", "copy", "mean_square", True, 0]
    for name, (steps, rate, decay, batch, per_epoch) in {
        "mnist-mlp-code": (600_000, 1e-4, 2e-4, 50, 1100),
        "tiny-imagenet-resnet50-code": (80_000, 0.1, 2e-4, 20, 4750),
    }.items():
        recipe = schema.load(name)
        assert list(recipe.methods) == ["AT", "TLA"]
        train = recipe.methods["TLA"].train
        assert settings(train.optimizer, "lr weight_decay") == [rate, decay]
        assert train.batch == batch
        assert abs(train.epochs * per_epoch - steps) < per_epoch
    assert [at * per_epoch for at in train.schedule.at] == pytest.approx([50_000, 60_000])
    assert settings(recipe.model, "stem_stride extra_blocks") == [1, 0]


def test_llr_ablation_varies_the_slope_term_alone() -> None:
    recipe = schema.load("mnist-llr-ablation-small")
    found = {name: settings(entry.method, "slope mu") for name, entry in recipe.methods.items()}
    assert found == {
        "LLR": ["dot", 0.6],
        "gap alone": ["dot", 0],
        "norm small weight": ["norm", 0.06],
        "norm large weight": ["norm", 6],
    }
    tables = list(recipe.table()["methods"].values())
    for table in tables:
        del table["slope"], table["mu"]
    assert all(table == tables[0] for table in tables)


OPTION = r"^\| `(\w+)(?: = ([^`]+))?`(?: of `\w+`)? \|.*\| `([\w-]+)` \|$"


@pytest.mark.parametrize(("option", "value", "name"), re.findall(OPTION, PAGE, re.MULTILINE))
def test_recipe_named_on_the_variants_page_uses_the_option(option: str, value: str, name: str) -> None:
    methods = [entry.method for entry in schema.load(name).methods.values()]
    found = [getattr(method, option) for method in methods if hasattr(method, option)]
    wanted = tomllib.loads(f"value = {value}")["value"] if value else None
    if isinstance(wanted, dict):
        assert any(all(getattr(attack, key) == setting for key, setting in wanted.items()) for attack in found)
    elif value:
        assert wanted in found
    else:
        assert any(setting is not None for setting in found)


def test_variants_page_lists_every_option_of_tla() -> None:
    shared = {"attack", "warmup", "smoothing", "lambda1", "lambda2", "margin", "pool"}
    assert {option for option, *_ in re.findall(OPTION, PAGE, re.MULTILINE)} >= tla(
        "mnist-mlp"
    ).__dict__.keys() - shared


@pytest.mark.parametrize("number", [0, 1])
def test_toml_of_the_variants_page_loads(number: int, tmp_path: Path) -> None:
    text = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)[number]
    if 'name = "metric"' in text:
        pytest.importorskip("pytorch_metric_learning")
        text = 'base = "quickstart"\n' + text
    (tmp_path / "page.toml").write_text(text)
    (changed,) = tomllib.loads(text)["methods"]
    assert changed in schema.load(str(tmp_path / "page.toml")).methods
