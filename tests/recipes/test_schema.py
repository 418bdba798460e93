"""Recipes are built as written; invalid ones are refused with the key and the closest known name."""

import re
import tomllib
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from holdfast.attacks.eot import EOT
from holdfast.attacks.fgsm import FGSM
from holdfast.attacks.mim import MIM
from holdfast.attacks.pgd import PGD
from holdfast.data.augment import Augment, Flip, PadCrop, Saturation
from holdfast.methods.adversarial import Adversarial
from holdfast.recipes import kinds, schema, source, toml
from holdfast.recipes.schema import Recipe, read
from holdfast.recipes.tables.attack import TransferConfig
from holdfast.recipes.tables.train import EMAConfig, ScheduleConfig, TrainConfig
from tiny_study import TINY, table


def changed(*changes: str) -> Recipe:
    return schema.load("quickstart", changes)


def again(recipe: Recipe) -> Recipe:
    return read(tomllib.loads(toml.dumps(recipe.table())))


@pytest.mark.parametrize("name", source.names())
def test_every_library_recipe_equals_its_resolved_form(name: str) -> None:
    recipe = schema.load(name)
    assert recipe.name == name
    assert recipe.title
    assert recipe.description.endswith(".")
    assert again(recipe).table() == recipe.table()


def test_mnist_mlp_has_the_published_settings() -> None:
    recipe = schema.load("mnist-mlp")
    assert recipe.threat.eps == 0.3
    entry = recipe.methods["TLA"]
    assert (entry.train.batch, entry.train.epochs, entry.train.optimizer.lr) == (50, 200, 1e-4)
    method: Any = entry.method
    assert (method.lambda1, method.lambda2, method.margin, method.pool) == (0.5, 0.001, 0.05, 50)
    assert (method.attack.steps, method.attack.step, method.attack.keep) == (40, 0.01, "last")


ODD = r"""
name = "odd"
title = "quotes \" and \\ and \u007f"
seeds = 4
threads = 2
[data]
name = "npz:a b.npz"
valid = 5
[model]
encoder = "mlp"
width = 16
mean = [0.5]
std = ["1/4"]
[threat]
norm = "l2"
eps = "3/2"
low = -inf
high = inf
[train]
epochs = 3
optimizer = { name = "sgd", lr = "1/10", momentum = 0.5, weight_decay = 5e-4 }
schedule = { name = "step", at = [1, "3/2"], gamma = 0.5 }
augment = { flip = {}, saturation = { high = "7/4" } }
[craft]
name = "mim"
form = "average"
decay = 0.9
[methods.adversarial]
attack = "fgsm"
[methods."T.L+A @ 1"]
name = "tla"
layer = "encoder.layers.1"
copy_margin = 0.1
positive = "both"
[methods."T.L+A @ 1".train]
augment.flip.share = 0.25
augment.pad_crop = { pad = 4, mode = "reflect" }
init_from = "adversarial"
select = "clean"
[validate]
steps = 3
[attacks.pgd]
loss = { name = "logit_difference", kappa = inf }
eps = 1
[attacks."v2.1"]
name = "cw-linf"
kappa = inf
threat = "linf:1/2"
[attacks."v2.2"]
name = "pgd"
loss = { name = "cross_entropy", smoothing = "1/8" }
keep = "worst"
[evaluate]
curve = "pgd"
eps = [0, "1/2", 1]
"""


def test_unusual_recipe_equals_its_resolved_form(tmp_path: Path) -> None:
    (tmp_path / "odd.toml").write_text(ODD)
    recipe = schema.load(str(tmp_path / "odd.toml"))
    assert again(recipe).table() == recipe.table()
    assert recipe.seeds == (4,)
    assert (recipe.threat.norm.name, recipe.threat.eps, recipe.threat.low, recipe.threat.high) == ("l2", 1.5, -inf, inf)
    assert recipe.model.std == (0.25,)
    config = recipe.methods["T.L+A @ 1"].train
    assert config.schedule.at == (1.0, 1.5)
    assert config.optimizer.lr == 0.1
    assert config.init_from == "adversarial"
    changes = {"flip": Flip(share=0.25), "saturation": Saturation(high=1.75)}
    assert config.augment == Augment(pad_crop=PadCrop(pad=4, mode="reflect"), **changes)  # type: ignore[arg-type]
    assert recipe.methods["adversarial"].train.init_from is None
    assert isinstance(recipe.methods["adversarial"].method.attack, FGSM)  # type: ignore[attr-defined]
    pgd: Any = recipe.attacks["pgd"]
    assert pgd.threat.eps == 1
    assert pgd.threat.low == -inf
    assert pgd.loss.keywords == {"kappa": inf}
    assert recipe.table()["attacks"]["pgd"]["loss"] == {"name": "logit_difference", "kappa": inf}
    assert recipe.table()["attacks"]["v2.2"]["loss"] == {"name": "cross_entropy", "smoothing": 0.125}


def test_omitted_keys_are_none_or_the_default() -> None:
    recipe = read(table())
    assert recipe.seeds == (0,)
    assert recipe.title == "small"
    assert recipe.threads is None
    assert recipe.methods["plain"].train.augment == Augment()
    assert recipe.evaluate.samples is None
    assert recipe.validate == PGD(threat=recipe.threat, steps=10)
    assert "threads" not in toml.dumps(recipe.table())


def test_base_provides_missing_keys(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('base = "quickstart"\n[train]\nepochs = 2\n[methods.AT]\nwarmup = 0.5')
    mine, base = schema.load(str(tmp_path / "mine.toml")), schema.load("quickstart")
    assert mine.name == "mine"
    assert mine.attacks.keys() == base.attacks.keys()
    assert {entry.train.epochs for entry in mine.methods.values()} == {2}
    assert {entry.train.batch for entry in mine.methods.values()} == {64}
    assert mine.methods["AT"].method.warmup == 0.5  # type: ignore[attr-defined]
    assert mine.methods["TLA"].method == base.methods["TLA"].method


def test_changes_set_the_field_they_name() -> None:
    recipe = changed('attacks."C&W".steps=3', "threat.eps=8/255", "train.epochs=4", "methods.AT.train.epochs=5")
    assert recipe.attacks["C&W"].steps == 3  # type: ignore[union-attr]
    assert recipe.threat.eps == 8 / 255
    assert recipe.attacks["PGD-40"].threat.eps == 8 / 255  # type: ignore[union-attr]
    assert {name: entry.train.epochs for name, entry in recipe.methods.items()}["AT"] == 5
    assert recipe.methods["TLA"].train.epochs == 4


def test_crafting_attacks_return_their_last_iterate_by_default() -> None:
    recipe = read(
        table(
            craft={"name": "fgsm", "start": "random"},
            methods={
                "adversarial": {},
                "other": {"name": "adversarial", "attack": {"steps": 3}},
                "noise": {"name": "adversarial", "attack": "noise"},
                "worst": {"name": "adversarial", "attack": {"name": "bim", "keep": "worst"}},
            },
        )
    )
    crafts: dict[str, Any] = {name: entry.method.attack for name, entry in recipe.methods.items()}  # type: ignore[attr-defined]
    assert crafts["adversarial"] == FGSM(threat=recipe.threat, start="random")
    assert crafts["other"] == PGD(threat=recipe.threat, steps=3, keep="last")
    assert kinds.name_of(crafts["noise"]) == "noise"
    assert crafts["worst"].keep == "worst"


def test_entries_set_to_false_are_removed(tmp_path: Path) -> None:
    assert "noise" not in changed("attacks.noise=false").attacks
    assert list(changed("methods.AT=false", "methods.ALP=false").methods) == ["plain", "TLA"]
    (tmp_path / "mine.toml").write_text('base = "quickstart"\n[methods]\nTLA = false\n[attacks]\n"C&W" = false')
    mine = schema.load(str(tmp_path / "mine.toml"))
    assert "TLA" not in mine.methods
    assert "C&W" not in mine.attacks
    assert again(mine).table() == mine.table()
    with pytest.raises(ValueError, match=re.escape("unknown attack 'PGD-40' in evaluate.curve")):
        changed("attacks.PGD-40=false")
    with pytest.raises(ValueError, match="methods must be a table with at least one entry"):
        changed(*(f"methods.{name}=false" for name in ("plain", "AT", "ALP", "TLA")))


def test_the_name_of_an_attack_or_method_is_by_default_that_of_its_table_in_lower_case() -> None:
    assert changed("attacks.PGD.steps=3").attacks["PGD"] == changed("attacks.pgd.steps=3").attacks["pgd"]
    assert changed("methods.Trades={}").methods["Trades"] == changed("methods.T=trades").methods["T"]


@pytest.mark.parametrize("given", [(), ("evaluate",), ("certify",), ("evaluate", "certify")])
def test_networks_are_certified_on_the_samples_they_are_attacked_on(given: Sequence[str]) -> None:
    changes = [f"{where}.samples=7" for where in given]
    recipe = changed("certificates.IBP={}", "certify.radii=[0.1]", *changes)
    assert recipe.certify is not None
    assert recipe.certify.samples == recipe.evaluate.samples == (7 if given else None)
    assert again(recipe).table() == recipe.table()


def test_transfer_has_a_source_and_an_attack() -> None:
    attacks = {"named": {"name": "transfer", "source": "plain", "attack": {"name": "bim", "steps": 2}}, "transfer": {}}
    recipe = read(table(seeds=[1, 2], attacks=attacks))
    named, plain = recipe.attacks["named"], recipe.attacks["transfer"]
    assert isinstance(named, TransferConfig)
    assert isinstance(plain, TransferConfig)
    assert (named.source, kinds.name_of(named.attack)) == ("plain", "bim")
    assert (plain.source, plain.attack) == ("self", PGD(threat=recipe.threat, keep="last"))
    assert again(recipe).table() == recipe.table()


@pytest.mark.parametrize(
    ("change", "near"),
    [
        ("trian.epochs=3", "unknown key 'trian' in quickstart; did you mean 'train'?"),
        ("train.epoch=3", "unknown key 'epoch' in methods.plain.train; did you mean 'epochs'?"),
        ("train.optimizer.learning_rate=3", "unknown key 'learning_rate' in methods.plain.train.optimizer"),
        ("train.optimizer.nam=3", "in methods.plain.train.optimizer; did you mean 'name'?"),
        ("train.schedule.gama=3", "in methods.plain.train.schedule; did you mean 'gamma'?"),
        ("train.augment.flp={}", "unknown key 'flp' in methods.plain.train.augment; did you mean 'flip'?"),
        (
            "train.augment.pad_crop.pat=2",
            "unknown key 'pat' in methods.plain.train.augment.pad_crop; did you mean 'pad'?",
        ),
        ("methods.TLA.lamda1=1", "unknown key 'lamda1' in methods.TLA; did you mean 'lambda1'?"),
        ("methods.TLA.train.bach=1", "unknown key 'bach' in methods.TLA.train; did you mean 'batch'?"),
        ("methods.TLA.attack.stps=1", "unknown key 'stps' in methods.TLA.attack; did you mean 'steps'?"),
        ("methods.TLA.name=tal", "methods.TLA: unknown method 'tal'; did you mean 'tla'?"),
        ("craft.stps=3", "unknown key 'stps' in craft; did you mean 'steps'?"),
        ("craft.name=pdg", "craft: unknown attack 'pdg'; did you mean 'pgd'?"),
        ("validate.stepss=3", "unknown key 'stepss' in validate; did you mean 'steps'?"),
        ("attacks.MIM.decai=1", "unknown key 'decai' in attacks.MIM; did you mean 'decay'?"),
        ("attacks.new.name=fgms", "attacks.new: unknown attack 'fgms'; did you mean 'fgsm'?"),
        ("attacks.PDG.steps=3", "attacks.PDG: unknown attack 'pdg'; did you mean 'pgd'?"),
        ("attacks.transfer.sorce=AT", "unknown key 'sorce' in attacks.transfer; did you mean 'source'?"),
        ("attacks.transfer.attack.stps=3", "unknown key 'stps' in attacks.transfer.attack; did you mean 'steps'?"),
        ("attacks.transfer.source=TAL", "unknown source 'TAL' in attacks.transfer; did you mean 'TLA'?"),
        ("attacks.PGD-40.loss=cross_entropi", "in attacks.PGD-40.loss; did you mean 'cross_entropy'?"),
        ("attacks.PGD-40.loss={name='logit_difference',kapa=3}", "in attacks.PGD-40.loss; did you mean 'kappa'?"),
        ("attacks.PGD-40.threat.esp=3", "unknown norm '' in attacks.PGD-40.threat"),
        ("threat.norm=linff", "unknown norm 'linff' in threat; did you mean 'linf'?"),
        ("threat.esp=0.1", "unknown key 'esp' in threat; did you mean 'eps'?"),
        ("data.nmae=mnist", "unknown key 'nmae' in data; did you mean 'name'?"),
        ("model.encoder=tinny", "model.encoder: unknown encoder 'tinny'; did you mean 'tiny'?"),
        ("model.widht=3", "unknown key 'widht' in model; did you mean 'width'?"),
        ("evaluate.shrad=3", "unknown key 'shrad' in evaluate; did you mean 'shard'?"),
        ("evaluate.curve=PDG-40", "unknown attack 'PDG-40' in evaluate.curve; did you mean 'PGD-40'?"),
        ("evaluate.strip=nois", "unknown attack 'nois' in evaluate.strip; did you mean 'noise'?"),
        ("methods.AT.train.init_from=plian", "'plian' in methods.AT.train; did you mean 'plain'?"),
    ],
)
def test_unknown_names_are_refused_at_every_level(change: str, near: str) -> None:
    with pytest.raises(ValueError, match=re.escape(near)) as refusal:
        changed(change)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("train.epochs=many", "methods.plain.train.epochs is 'many': input should be a valid integer"),
        ("train.epochs=2.5", "methods.plain.train.epochs is 2.5: "),
        ("train.epochs=true", "methods.plain.train.epochs is true: "),
        ("train.epochs=0", "methods.plain.train: epochs is 0 but must be at least 1"),
        ("train.select=best", "methods.AT.train.select is 'best': input should be 'robust' or 'clean'"),
        ("train.optimizer.name=lion", "methods.plain.train.optimizer.name is 'lion': "),
        ("train.optimizer=adam", "methods.plain.train.optimizer must be a table of settings but is 'adam'"),
        ("train.augment=flip", "methods.plain.train.augment must be a table of settings but is 'flip'"),
        ("train.augment.flip=true", "methods.plain.train.augment.flip must be a table of settings but is True"),
        ("train.augment.pad_crop={}", "methods.plain.train.augment.pad_crop needs pad"),
        ("train.augment.pad_crop.pad=0", "methods.plain.train.augment.pad_crop: pad = 0 and mode = 'zero' were given"),
        ("train.augment.saturation.low=2", "methods.plain.train.augment.saturation: low = 2.0 and high = 1.5"),
        (
            "train.schedule.name=drop",
            "train.schedule.name is 'drop': input should be 'constant', 'step', 'cosine' or 'one_",
        ),
        ("train.schedule.warmup=0", "train.schedule: warmup is 0.0 but it is the share of training in (0, 1)"),
        ("train.schedule.warmup=1", "train.schedule: warmup is 1.0 but it is the share"),
        ("train.schedule.gamma=-1", "train.schedule: gamma is -1.0 but the learning rate is multiplied by it"),
        ("train.schedule.at=[-1]", "train.schedule: at is [-1.0] but it names epochs"),
        ("train.optimizer.lr=-1", "train.optimizer: lr is -1.0 but a learning rate is a finite number"),
        ("train.optimizer.lr=nan", "train.optimizer: lr is nan but a learning rate is a finite number"),
        ("train.optimizer.momentum=2", "train.optimizer: momentum is 2.0 but it is a share in [0, 1)"),
        ("train.optimizer.weight_decay=-1", "train.optimizer: weight_decay is -1.0 but it is a finite number"),
        ("train.clip_norm=0", "train: clip_norm is 0.0 but the longest gradient allowed is a number above 0"),
        ("train.clip_norm=-1", "train: clip_norm is -1.0 but the longest"),
        ("train.clip_norm=nan", "train: clip_norm is nan but the longest"),
        ("train.clip_norm=inf", "train: clip_norm is inf but the longest"),
        ("train.ema.decay=1", "train.ema: decay is 1.0 but it is the share of the average that stays, in (0, 1)"),
        ("train.ema.decay=0", "train.ema: decay is 0.0 but"),
        ("train.ema.decay=nan", "train.ema: decay is nan but"),
        ("train.ema=0.999", "train.ema must be a table of settings but is 0.999"),
        ("train.swa.start=1", "train.swa: start is 1.0 but it is the share of training before the mean, in [0, 1)"),
        ("train.swa.start=-0.1", "train.swa: start is -0.1 but"),
        ("train={epochs=1, ema={}, swa={}}", "train: ema and swa are both given but weights are averaged in one way"),
        ("train.patience=0", "train: patience is 0 but training waits for a better epoch at least 1 epoch"),
        ("train.patience=1.5", "train.patience is 1.5: "),
        ("train.precision=bf16", "train.precision is 'bf16': input should be 'float32' or 'bf16-mixed'"),
        ("train=3", "train must be a table of settings but is 3"),
        ("methods.AT.train=3", "methods.AT.train must be a table of settings but is 3"),
        ("methods=3", "methods must be a table"),
        ("methods.AT.warmup=2", "methods.AT: warmup is 2.0 but it is a share"),
        ("methods.TLA.margin=[1]", "methods.TLA.margin is [1]: "),
        ("methods.TLA.pool=1/2", "methods.TLA.pool is '1/2': "),
        ("methods.TLA.signed_search=perhaps", "methods.TLA.signed_search is 'perhaps': "),
        ("craft=3", "craft must be a table of settings but is 3"),
        ("craft.steps=0", "craft: steps is 0"),
        ("craft.keep=fooled", 'training needs an attack with keep="last"'),
        ("validate=3", "validate must be a table of settings but is 3"),
        ("validate={name='transfer', source='x', attack='pgd'}", "validate.source is 'x' but a recipe has no way"),
        ("attacks={}", "attacks must be a table with at least one entry"),
        ("attacks.noise=[1]", "attacks.noise: unknown attack '[1]'"),
        ("attacks.PGD-40.steps=-1", "attacks.PGD-40: steps is -1"),
        ("attacks.PGD-40.eps=-1", "attacks.PGD-40.threat: eps is -1.0 but a radius must be zero or more"),
        ("attacks.PGD-40.keep=best", "attacks.PGD-40.keep is 'best': "),
        ("attacks.transfer.attack=3", "attacks.transfer.attack must be a table of settings but is 3"),
        ("attacks.transfer.attack.keep=fooled", 'attacks.transfer: transfer needs an attack with keep="last"'),
        ("threat=3", "threat must be a table or a text such as 'linf:8/255' but is 3"),
        ("threat=linf:", "threat.eps is '': "),
        ("threat.eps=-8/255", "threat: eps is -0.03"),
        ("threat.eps=nan", "threat: eps is nan but a radius must be zero or more"),
        ("threat.eps=1/0", "threat.eps is '1/0': "),
        ("threat.low=2", "threat: the box [2.0, 1.0] is empty"),
        ("data=digits", "data must be a table of settings but is 'digits'"),
        ("data.verify=3", "data.verify is 3: "),
        ("model.width=0", "model: width is 0 but must be at least 1"),
        ("model.mean=[0.5]", "model: mean is (0.5,) and std None but both need"),
        ("model.std=3", "model.std is 3: "),
        ("threads=0", "threads is 0 but must be at least 1"),
        ("threads=true", "threads is true: "),
        ("evaluate.shard=0", "evaluate: shard is 0"),
        ("evaluate.samples=0", "evaluate: shard is 1000 and samples 0"),
        ("evaluate.weights=worst", "evaluate.weights is 'worst': input should be 'best' or 'last'"),
        ("evaluate.eps=[0.1, -1]", "evaluate: eps is [0.1, -1.0] but the curve is measured at"),
        ("evaluate.eps=[inf]", "evaluate: eps is [inf] but the curve is measured at"),
        ("evaluate.eps=[0.1, 0.10000000001]", "two attacks would be called 'PGD-40@0.1'"),
        ("attacks.\"PGD-40@0.1\"={name='pgd'}", "two attacks would be called 'PGD-40@0.1'"),
        ("methods.AT.train.init_from=AT", "methods.AT.train.init_from leads back to 'AT'"),
        ("train.init_from=plain", "methods.plain.train.init_from leads back to 'plain'"),
        ("name=a/b", "the recipe is called 'a/b' but its results go to a folder of that name"),
        ("name=..", "the recipe is called '..'"),
    ],
)
def test_error_names_the_key_of_a_wrong_value(change: str, expected: str) -> None:
    with pytest.raises(ValueError, match=re.escape(expected)) as refusal:
        changed(change)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("seeds", ["[]", "[0, 0]", "[-1]", "[0.5]", "1.5", "true", "[true]", "'01'", "[[0]]", "{a=1}"])
def test_invalid_seeds_are_refused(seeds: str) -> None:
    with pytest.raises(ValueError, match=r"seeds is .* but must be different whole numbers of zero or more"):
        changed(f"seeds={seeds}")


@pytest.mark.parametrize("name", ["", " a", "../a", "a/b", "a:b", "a\nb", "a<b>", "é", "-a", "."])
@pytest.mark.parametrize("section", ["methods", "attacks"])
def test_names_unusable_for_folders_or_columns_are_refused(section: str, name: str) -> None:
    with pytest.raises(ValueError, match=f"{section} has the name .*; use letters, digits, spaces and"):
        read(table(**{section: {name: {"name": "plain" if section == "methods" else "noise"}}}))


@pytest.mark.parametrize("section", ["methods", "attacks"])
def test_names_that_differ_only_by_case_are_refused(section: str) -> None:
    kind = {"name": "plain" if section == "methods" else "noise"}
    with pytest.raises(ValueError, match=f"{section} has 'A' twice but for upper and lower case"):
        read(table(**{section: {"A": kind, "a": kind}}))


@pytest.mark.parametrize("section", ["data", "model", "threat", "methods", "attacks"])
def test_missing_sections_are_refused(section: str) -> None:
    given = table()
    given.pop(section)
    with pytest.raises(ValueError, match=rf"my recipe needs a \[{section}\] section"):
        read(given, "my recipe")


@pytest.mark.parametrize(
    ("section", "content", "expected"),
    [
        ("data", {}, "data needs name"),
        ("model", {}, "model: name one of encoder"),
        ("threat", {"norm": "l2"}, "threat needs eps"),
        ("train", {}, "methods.plain.train needs epochs"),
    ],
)
def test_missing_keys_are_refused(section: str, content: object, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        read(table(**{section: content}))


def test_transfer_from_several_sources_with_its_options() -> None:
    options = {"source": ["self", "plain"], "diversity": 0.5, "smallest": "4/5", "translation": 3}
    recipe = read(table(seeds=[1, 2], attacks={"transfer": options | {"attack": {"name": "mim", "steps": 2}}}))
    config = recipe.attacks["transfer"]
    assert isinstance(config, TransferConfig)
    assert config.sources == ("self", "plain")
    models = [nn.Identity(), nn.Flatten()]
    attack = config.on(models)
    assert (attack.sources, attack.attack) == (tuple(models), config.attack)
    assert (attack.diversity, attack.smallest, attack.translation) == (0.5, 0.8, 3)
    assert again(recipe).table() == recipe.table()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("attacks.transfer.source=[]", "attacks.transfer: source is an empty list"),
        ("attacks.transfer.source=['plain', 'plain']", "but each model is used once"),
        ("attacks.transfer.source=['self', 'TAL']", "unknown source 'TAL' in attacks.transfer; did you mean 'TLA'?"),
        ("attacks.transfer.diversity=2", "diversity is 2.0 but it is a probability"),
        ("attacks.transfer.smallest=1", "smallest is 1.0 but images are made smaller"),
        ("attacks.transfer.translation=4", "translation is 4 but a kernel has an odd size"),
    ],
)
def test_bad_options_of_transfer_are_refused(change: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        changed(change)


def test_the_attack_inside_eot_returns_its_last_iterate() -> None:
    recipe = read(table(attacks={"EOT": {"name": "eot", "draws": 3, "attack": {"name": "mim", "steps": 2}}}))
    attack = recipe.attacks["EOT"]
    assert isinstance(attack, EOT)
    assert (attack.draws, attack.attack) == (3, MIM(threat=recipe.threat, steps=2, keep="last"))
    assert again(recipe).table() == recipe.table()


def test_transfer_is_left_out_with_one_seed_and_the_recipe_says_so() -> None:
    both, one = changed("seeds=[3, 4]"), changed("seeds=[3]")
    assert both.attacks.keys() - one.attacks.keys() == {"transfer"}
    assert not both.notes
    assert one.notes == (
        "transfer is left out: it crafts on a model trained with another seed, but the recipe has only seed 3.",
    )
    assert again(one) == one
    with pytest.raises(ValueError, match=r"evaluate\.strip is 'transfer', which crafts on a model of another seed"):
        changed("seeds=[3]", "evaluate.strip=transfer")


def test_curve_without_a_known_attack_is_refused() -> None:
    with pytest.raises(ValueError, match="eps is given but no curve"):
        read(table(evaluate={"eps": [0.1]}))


def test_circular_init_from_is_refused() -> None:
    with pytest.raises(ValueError, match="leads back to 'AT'"):
        changed("methods.AT.train.init_from=TLA", "methods.TLA.train.init_from=AT")
    assert changed("methods.AT.train.init_from=plain", "methods.TLA.train.init_from=AT")
    assert changed("train.init_from=weights/any.safetensors")


def test_optional_training_settings_can_be_switched_off() -> None:
    given = {"epochs": 1, "ema": {"decay": 0.9}, "patience": 3, "clip_norm": 1.0}
    off = {"ema": False, "swa": False, "patience": False, "clip_norm": False, "init_from": False}
    recipe = read(table(train=given, methods={"plain": {}, "bare": {"name": "plain", "train": off}}))
    assert recipe.methods["plain"].train == TrainConfig(epochs=1, ema=EMAConfig(decay=0.9), patience=3, clip_norm=1.0)
    assert recipe.methods["bare"].train == TrainConfig(epochs=1)
    assert read(recipe.table()).table() == recipe.table()


def test_schedule_factors_equal_values_by_hand() -> None:
    assert [ScheduleConfig().factor(e, 4) for e in (0, 2, 4)] == [1, 1, 1]
    step = ScheduleConfig(name="step", at=(1, 2.5), gamma=0.1)
    assert [step.factor(e, 4) for e in (0, 0.99, 1, 2.49, 2.5, 9)] == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])
    cosine = ScheduleConfig(name="cosine")
    by_hand = [1, (1 + 0.5**0.5) / 2, 0.5, (1 - 0.5**0.5) / 2, 0]
    assert [cosine.factor(e, 4) for e in (0, 1, 2, 3, 4)] == pytest.approx(by_hand)
    assert cosine.factor(5, 4) == pytest.approx(0)


def test_tiny_recipe_has_a_plain_and_a_tla_method(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    recipe = schema.load(str(tmp_path / "tiny.toml"))
    assert list(recipe.methods) == ["plain", "TLA"]
    assert not isinstance(recipe.methods["plain"].method, Adversarial)
