"""The user's own model from the command line: results equal a closed form; resuming and errors."""

import json
import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from holdfast.data import DataSet
from holdfast.evaluation.checks import identity
from holdfast.evaluation.measurements.attack import Attacked
from holdfast.models.own import Own
from holdfast.recipes import kinds, short
from holdfast.records.records import Records
from holdfast.run import own_recipe
from tiny_study import toy

NETS = """
import torch
from torch import nn


class Bright(nn.Module):
    '''The logit of a class is the weighted sum of its row of pixels.'''

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return x[:, 0, :3].sum(2) * self.scale


class Shouting(nn.Module):
    def __init__(self, what):
        super().__init__()
        self.what = what

    def forward(self, x):
        return self.what(x)


def broken(x):
    raise KeyError("no such layer")


def build():
    return Bright()


ready = Bright()
number = 3


def failing():
    raise OverflowError("too\\nwide")


def leaving():
    raise SystemExit(0)


def needing(width):
    return Bright()


def chatty():
    return [Bright()]


def probable():
    return Shouting(lambda x: torch.softmax(x[:, 0, :3].sum(2), 1))


def blank():
    return Shouting(lambda x: x[:, 0, :3].sum(2) * float("nan"))


def narrow():
    return Shouting(lambda x: x[:, 0, :2].sum(2))


def wide():
    return Shouting(lambda x: x[:, 0, :4].sum(2))


def flat():
    return Shouting(lambda x: x.sum((1, 2, 3)))


def throwing():
    return Shouting(broken)


def deaf():
    return Shouting(lambda x: x[:, 0, :3].sum(2).detach())


def labeled():
    from types import SimpleNamespace

    return Shouting(lambda x: SimpleNamespace(logits=x[:, 0, :3].sum(2)))
"""


@pytest.fixture
def user_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's folder: modules, weights in several formats, data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_DATA", raising=False)
    (tmp_path / "nets.py").write_text(NETS)
    test = toy(90).train
    np.savez(tmp_path / "toy.npz", x_test=test.x.numpy(), y_test=test.y.numpy())
    save_file({"scale": torch.ones(3)}, tmp_path / "w.safetensors")
    torch.save({"epoch": 3, "state_dict": {"module.scale": torch.ones(3)}}, tmp_path / "w.pt")
    yield tmp_path
    for name in ("nets", "half", "timm", "torchvision", "torchvision.models"):
        sys.modules.pop(name, None)


EPS = 0.17
MODEL = Path("nets-build") / "seed-0"  # the folder of the model below --out
BASIC = {"--model": "nets:build", "--weights": "w.pt", "--data": "npz:toy.npz", "--threat": f"linf:{EPS}"}
BASIC |= {"--out": "out"}


def stored(out: Path) -> Records:
    """The records of the only model below --out."""
    (folder,) = out.glob("*/*/records")
    return Records.load(folder)


def args(**change: str | None) -> list[str]:
    """The arguments of the command; options are replaced, or omitted if None."""
    options = BASIC | {f"--{name.replace('_', '-')}": value for name, value in change.items()}
    return ["evaluate", *(word for name, value in options.items() if value is not None for word in (name, value))]


def held_by_hand(eps: float) -> np.ndarray[Any, Any]:
    """Closed form of the samples that hold: pixels of the true row lose eps, all others gain it, inside the box."""
    test = toy(90).train
    x, y = test.x[:, 0, :3].double(), test.y
    low, high = (x - (x - eps).clamp(0)).sum(2), ((x + eps).clamp(max=1) - x).sum(2)
    own_row = (x.sum(2) - low).gather(1, y[:, None])
    other = (x.sum(2) + high).scatter(1, y[:, None], -torch.inf)
    return (own_row > other.amax(1, keepdim=True))[:, 0].numpy()


def test_autoattack_confirms_what_triage_left_standing(user_folder: Path, call: Any) -> None:
    done = call(*args(), "--confirm", "5")
    assert done.code == 0, done.err
    facts = stored(user_folder / "out").attacks["autoattack after triage"]
    assert facts.drawn_from == "triage"
    assert facts.stages[0]["attacked"] == 5
    page = (user_folder / "out" / "report.html").read_text()
    assert "AutoAttack fooled 0 of 5 samples that triage left standing, drawn at random among" in page
    assert "confirm is 0 but must be a number of samples" in call(*args(), "--confirm", "0").err
    assert "--confirm is 'some'" in call(*args(), "--confirm", "some").err
    assert "but triage is not among the attacks" in call(*args(), "--attack", "noise", "--confirm", "5").err


def test_worst_case_equals_the_closed_form(user_folder: Path, call: Any) -> None:
    done = call(*args())
    assert done.code == 0, done.err
    records = stored(user_folder / "out")
    test = toy(90).train
    assert records.columns["index"].tolist() == list(range(len(test)))
    assert records.columns["y"].tolist() == test.y.tolist()
    held = held_by_hand(EPS)
    assert 10 < held.sum() < len(test) - 10  # the comparison covers both outcomes
    assert records.held(EPS, "linf").tolist() == held.tolist()
    assert list(records.attacks) == list(short.ATTACKS)
    share = 100 * held.mean()
    assert f"nets:build keeps {share:.1f} % of the samples correct under attack (95 % interval" in done.out
    assert "| nets:build " in done.out
    assert done.out.splitlines()[-1] == "report: out/report.html"
    page = (user_folder / "out" / "report.html").read_text()
    assert "nets:build under attack" in page
    assert f"nets:build keeps {share:.1f} % of the samples" in page
    assert f"<code>{records.facts['weights']['digest'][:12]}</code>" in page


def test_own_model_has_the_same_numbers_as_the_recipe_model(
    user_folder: Path, call: Any, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (user_folder / "half.py").write_text(
        "from torch import nn\nfrom holdfast.models.classifier import Classifier\n"
        "from holdfast.models.encoders.tiny import Tiny\n"
        "def build():\n    return Classifier(Tiny((1, 8, 8), channels=1, width=8), nn.Linear(8, 10))\n"
    )
    folder = finished / "out" / "TLA" / "seed-1"
    weights = str(folder / "best.safetensors")
    change = {"model": "half:build", "weights": weights, "data": "digits", "threat": "linf:0.2", "samples": "60"}
    done = call(*args(**change, attack="pgd:steps=3"), "--attack", "cw_linf:steps=2")
    assert done.code == 0, done.err
    ours, recipe = stored(user_folder / "out"), Records.load(folder / "records")
    for mine, theirs in (("pgd:steps=3", "PGD-3"), ("cw_linf:steps=2", "C&W")):
        for kind in ("fooled", "label"):
            assert ours.columns[f"{kind}:linf:{mine}"].tolist() == recipe.columns[f"{kind}:linf:{theirs}"].tolist()
        distance = ours.columns[f"distance:linf:{mine}"]
        np.testing.assert_allclose(distance, recipe.columns[f"distance:linf:{theirs}"], rtol=1e-4)
        assert ours.attacks[mine].eps == 0.2


@pytest.mark.parametrize(
    "change",
    [
        {"weights": "w.safetensors"},
        {"model": "nets:Bright"},
        {"model": "nets:ready"},
        {"model": "nets:labeled", "weights": None},
    ],
)
def test_every_form_of_model_and_weights_is_accepted(user_folder: Path, call: Any, change: dict[str, Any]) -> None:
    done = call(*args(**change, samples="20", attack="pgd:steps=20,restarts=3,loss=logit_difference"))
    assert done.code == 0, done.err
    records = stored(user_folder / "out")
    which = torch.arange(20) * 72 // 20  # evenly spread over the set
    assert records.columns["index"].tolist() == which.tolist()
    assert records.held(EPS, "linf").tolist() == held_by_hand(EPS)[which].tolist()


def test_facts_describe_the_evaluation(user_folder: Path, call: Any) -> None:
    assert call(*args(attack="pgd:steps=4,step=1/50", samples="10", seed="7", mean="1/2", std="0.25")).code == 0
    facts = stored(user_folder / "out").facts
    assert facts["model"] == "nets:build"
    assert facts["seed"] == 7
    assert facts["weights"]["kept"] == "w.pt"
    assert facts["identity"]["weights"] == facts["weights"]["digest"]
    assert facts["identity"] == json.loads((user_folder / "out" / "nets-build" / "seed-7" / "model.json").read_text())
    assert facts["recipe"]["models"]["nets:build"]["mean"] == [0.5]
    assert facts["attacks"]["pgd:steps=4,step=1/50"]["settings"]["step"] == 0.02
    assert facts["data"]["name"] == "npz:toy.npz"
    assert facts["versions"]["torch"] == torch.__version__


def test_attack_inside_another_attack_is_completed() -> None:
    recipe = own_recipe.read("nets:build", data="npz:toy.npz", threat="linf:1/4", attack=["feature_norm"])
    inside = recipe.attacks["feature_norm"].attack  # type: ignore[attr-defined]
    assert (kinds.name_of(inside), inside.threat.eps) == ("pgd", 0.25)


def test_normalization_is_a_layer_of_the_model(user_folder: Path, call: Any) -> None:
    # logits are linear in the pixels, so shifting and scaling all pixels does not change any decision
    attack = "pgd:steps=20,restarts=3,loss=logit_difference"
    assert call(*args(mean="0.3", std="1/4", attack=attack)).code == 0
    assert stored(user_folder / "out").held(EPS, "linf").tolist() == held_by_hand(EPS).tolist()
    assert call(*args(mean="0.3", std="1/4", out="plain", attack="noise")).code == 0
    first, second = (json.loads((user_folder / out / MODEL / "model.json").read_text()) for out in ("out", "plain"))
    assert first == second
    assert call(*args(out="bare", attack="noise")).code == 0
    assert json.loads((user_folder / "bare" / MODEL / "model.json").read_text())["weights"] != first["weights"]


def test_finished_attacks_are_not_repeated(user_folder: Path, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    command = args(attack="pgd:steps=3")
    monkeypatch.setattr(own_recipe, "EvaluateConfig", partial(own_recipe.EvaluateConfig, shard=30))
    ran: list[tuple[str, int]] = []
    real = Attacked.measure

    def counted(self: Any, subject: Any, shard: Any, *rest: Any) -> Any:
        if len(ran) == 2:
            raise KeyboardInterrupt
        ran.append((self.name, shard.number))
        return real(self, subject, shard, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Attacked, "measure", counted)
        assert call(*command).code == 130
        assert ran == [("pgd:steps=3", 0), ("pgd:steps=3", 1)]
        ran.clear()
        assert call(*command).code == 0
        assert ran == [("pgd:steps=3", 2)]  # the one that was missing
    assert call(*args(attack="pgd:steps=3", out="whole")).code == 0
    resumed, whole = (stored(user_folder / out) for out in ("out", "whole"))
    assert {k: v.tolist() for k, v in resumed.columns.items()} == {k: v.tolist() for k, v in whole.columns.items()}


def refused(done: SimpleNamespace, code: int = 2) -> str:
    assert done.code == code, done.err
    assert "Traceback" not in done.err
    assert not done.out
    (line,) = done.err.splitlines()
    return line.removeprefix("holdfast: ")


def test_results_of_another_model_are_refused(user_folder: Path, call: Any) -> None:
    command = args(attack="fgsm")
    assert call(*command).code == 0
    before = stored(user_folder / "out").facts
    save_file({"scale": torch.tensor([1.0, 1.0, 1.5])}, user_folder / "other.safetensors")
    message = refused(call(*args(attack="fgsm", weights="other.safetensors")))
    assert (
        message
        == "out/nets-build/seed-0 holds results of another model (other weights); choose another --out or remove it"
    )
    message = refused(call(*args(attack="fgsm", model="nets:Bright")))
    assert "out holds something other than results of nets-Bright-w" in message
    (user_folder / "nets.py").write_text(NETS.replace("* self.scale", "* self.scale * 2"))
    sys.modules.pop("nets")
    assert "(other code)" in refused(call(*command))
    assert stored(user_folder / "out").facts == before


def test_weaker_attack_at_another_threat_is_added_beside_the_stored_results(user_folder: Path, call: Any) -> None:
    assert call(*args(attack="pgd:steps=5")).code == 0
    first = stored(user_folder / "out")
    weak = args(attack="noise", threat="linf:0.01")
    done = call(*weak)
    assert done.code == 0, done.err
    second = stored(user_folder / "out")
    assert list(second.attacks) == ["pgd:steps=5", "noise at linf:0.01"]
    assert second.held(EPS, "linf").tolist() == first.held(EPS, "linf").tolist()
    assert 0 < second.held(EPS, "linf").mean() < second.held(0.01, "linf").mean()
    keeps = f"keeps {100 * first.held(EPS, 'linf').mean():.1f} %"
    assert keeps in done.out
    assert keeps in (user_folder / "out" / "report.html").read_text()
    assert call(*args(attack="fgsm", threat="l2:0.5")).code == 0
    assert call(*args(attack="fgsm")).code == 0
    assert call(*weak).out == call(*args(attack="fgsm")).out  # what is there already is not added twice
    found = stored(user_folder / "out")
    assert list(found.attacks) == ["pgd:steps=5", "noise at linf:0.01", "fgsm at l2:0.5", "fgsm"]
    for name, values in first.columns.items():
        np.testing.assert_array_equal(found.columns[name], values)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"data": "npz:few.npz"}, "data npz:toy.npz, to which results with data npz:few.npz cannot be added; use"),
        ({"seed": "1"}, "seed 0, to which results with seed 1 cannot be added; use another folder for them: --out"),
        ({"samples": "5"}, "samples all, to which results with samples 5 cannot be added; use another folder for them"),
        ({"arithmetic": "float32"}, "arithmetic auto, to which results with arithmetic float32 cannot be added"),
    ],
)
def test_results_of_other_samples_or_settings_are_refused_with_the_option_to_give(
    user_folder: Path, call: Any, change: dict[str, str], sentence: str
) -> None:
    test = toy(90).train
    np.savez(user_folder / "few.npz", x_test=test.x[:50].numpy(), y_test=test.y[:50].numpy())
    assert call(*args(attack="noise")).code == 0
    page = (user_folder / "out" / "report.html").read_bytes()
    message = refused(call(*args(attack="noise", **change)))
    assert f"out holds results with {sentence}" in message
    assert (user_folder / "out" / "report.html").read_bytes() == page
    assert call(*args(attack="noise", **change, out=message.rpartition("--out ")[2])).code == 0


def test_results_of_changed_files_are_refused(user_folder: Path, call: Any) -> None:
    assert call(*args(attack="noise")).code == 0
    test = toy(90).train
    np.savez(user_folder / "toy.npz", x_test=test.x.flip(0).numpy(), y_test=test.y.flip(0).numpy())
    message = refused(call(*args(attack="fgsm")))
    assert message == (
        "out holds results of other samples of npz:toy.npz, whose files have changed since; choose another --out"
    )


def test_the_curve_of_an_own_model_equals_the_closed_form(user_folder: Path, call: Any) -> None:
    done = call(*args(attack="pgd:steps=20,restarts=3,loss=logit_difference", eps="1/20,1/10"))
    assert done.code == 0, done.err
    records = stored(user_folder / "out")
    for eps in (0.05, 0.1, EPS):
        assert records.held(eps, "linf").tolist() == held_by_hand(eps).tolist()
    assert "linf 0.05" in done.out
    assert "--eps is [0.05, 'few']" in call(*args(eps="1/20,few")).err
    done = call("attack", "out", "nets:build", next(iter(records.attacks)), "--save", "adv.npz")
    assert done.code == 0, done.err
    (user_folder / "out" / "report.html").unlink()
    assert call("report", "out").out.splitlines()[-1] == "report: out/report.html"


def test_another_number_of_confirmed_samples_is_refused(user_folder: Path, call: Any) -> None:
    assert call(*args(attack="triage"), "--confirm", "2").code == 0
    assert "results with confirm 2" in refused(call(*args(attack="triage"), "--confirm", "3"))
    assert call(*args(attack="noise")).code == 0
    assert list(stored(user_folder / "out").attacks) == ["triage", "noise", "autoattack after triage"]


def test_examples_do_not_replace_a_page(user_folder: Path, call: Any) -> None:
    assert call(*args(attack="noise")).code == 0
    page = (user_folder / "out" / "report.html").read_bytes()
    np.savez(user_folder / "adv.npz", x_adv=toy(90).train.x.numpy())
    message = refused(call(*args(examples="adv.npz")))
    assert message == "out has a report already, which would be replaced; choose another --out"
    assert (user_folder / "out" / "report.html").read_bytes() == page


def test_parts_of_another_model_are_not_reused(user_folder: Path, call: Any) -> None:
    assert call(*args(attack="fgsm")).code == 0
    parts = set((user_folder / "out" / MODEL / "parts").glob("*.npz"))
    (user_folder / "out" / MODEL / "model.json").unlink()
    (user_folder / "nets.py").write_text(NETS.replace("sum(2) * self.scale", "sum(2) * self.scale.flip(0) ** 2"))
    sys.modules.pop("nets")
    (user_folder / "again" / MODEL).mkdir(parents=True)
    (user_folder / "out" / MODEL / "parts").rename(
        user_folder / "again" / MODEL / "parts"
    )  # as if the folder were shared
    (user_folder / "again" / MODEL / "model.json").write_text("{}")
    assert "holds results of another model" in refused(call(*args(attack="fgsm", out="again")))
    (user_folder / "again" / MODEL / "model.json").write_text(json.dumps(identity("nets:build", built())))
    assert call(*args(attack="fgsm", out="again")).code == 0
    assert len(set((user_folder / "again" / MODEL / "parts").glob("*.npz"))) == 2 * len(parts)


def built() -> Any:
    from importlib import import_module

    model = import_module("nets").build()
    model.load_state_dict({"scale": torch.ones(3)})
    return Own(model)


def test_folder_with_other_content_is_refused_and_unchanged(
    user_folder: Path, call: Any, study: SimpleNamespace
) -> None:
    page = (study.out / "report.html").read_bytes()
    assert "holds something other than results of nets-build-w" in refused(call(*args(out=str(study.out))))
    assert (study.out / "report.html").read_bytes() == page


def test_folder_is_named_after_model_weights_data_and_threat(user_folder: Path, call: Any) -> None:
    written = call(*args(out=None, attack="noise")).out
    assert written.endswith("report: runs/nets-build-w-toy.npz-linf-0.17/report.html\n")
    written = call(*args(out=None, attack="noise", threat="linf:8/255")).out
    assert written.endswith("report: runs/nets-build-w-toy.npz-linf-8-255/report.html\n")


def test_traceback_of_the_users_code_is_shown_on_request(user_folder: Path, call: Any) -> None:
    done = call("--traceback", *args(model="nets:failing"))
    assert done.code == 2
    assert "OverflowError: too" in done.err
    assert "nets.py" in done.err


BAD = {
    "no colon": (
        {"model": "nets"},
        "the model is 'nets' but must have one of the forms package.module:callable, timm:NAME",
    ),
    "no module": (
        {"model": "nest:build"},
        "asks for the module nest, which is neither in this folder nor installed; start",
    ),
    "a file": ({"model": "nets.py:build"}, "asks for the module nets.py, .*; write nets:build"),
    "a path": ({"model": "./nets.py:build"}, "asks for the module ./nets.py, .*; write nets:build"),
    "no name": ({"model": "nets:bild"}, "unknown name 'bild' in the module nets; did you mean 'build'?"),
    "raises": ({"model": "nets:failing"}, "calling nets:failing without arguments raised OverflowError: too wide"),
    "leaves": ({"model": "nets:leaving"}, "calling nets:leaving without arguments raised SystemExit: 0"),
    "needs": ({"model": "nets:needing"}, "calling nets:needing without .* raised TypeError: .* missing 1 required"),
    "number": ({"model": "nets:number"}, "raised TypeError: 'int' object is not callable"),
    "list": ({"model": "nets:chatty"}, "the model nets:chatty is a list but a torch.nn.Module is needed"),
    "softmax": ({"model": "nets:probable", "weights": None}, "the model seems to give probabilities"),
    "NaN": ({"model": "nets:blank", "weights": None}, "the model gives NaN or infinite outputs for clean samples"),
    "few": ({"model": "nets:narrow", "weights": None}, "has 2 outputs but npz:toy.npz has labels up to 2"),
    "flat": ({"model": "nets:flat", "weights": None}, r"the model returned \(8,\) for 8 inputs but logits"),
    "throws": ({"model": "nets:throwing", "weights": None}, r"the model raised KeyError: 'no such layer' \(given 8"),
    "deaf": ({"model": "nets:deaf", "weights": None}, "there is no gradient to follow"),
    "no weights": ({"weights": "none.pt"}, "there are no weights at none.pt"),
    "misfit": ({"weights": "misfit.pt"}, r"the weights do not fit the model \(missing: scale; unexpected: shift\)"),
    "timm bare": ({"model": "timm:resnet18", "weights": None}, "would have random weights, .*; give weights"),
    "layout": ({"model": "layout:trade"}, "unknown layout 'trade'; did you mean 'trades'?"),
    "other layout": ({"model": "layout:trades"}, "'scale' is not in the layout of TRADES"),
    "no data": ({"data": None}, "--model needs --data too, e.g. --data imagefolder:PATH"),
    "data": ({"data": "npz:toi.npz"}, "there is no .npz file at toi.npz"),
    "data name": ({"data": "minst"}, "unknown data set 'minst'"),
    "no threat": ({"threat": None}, "--model needs --threat too, e.g. --threat linf:8/255"),
    "threat": ({"threat": "linf"}, "--threat is 'linf' but has the form norm:eps or norm:eps:low:high"),
    "threat of three": ({"threat": "linf:0.1:0"}, "has the form norm:eps or norm:eps:low:high"),
    "norm": ({"threat": "lnf:0.1"}, "unknown norm 'lnf' in --threat; did you mean 'linf'?"),
    "eps": ({"threat": "linf:big"}, "--threat.eps is 'big'"),
    "box": ({"threat": "linf:0.1:0.4:0.6"}, r"x spans \[.*\] but the threat allows \[0.4, 0.6\]"),
    "attack": ({"attack": "pdg"}, "--attack pdg: unknown attack 'pdg'; did you mean 'pgd'?"),
    "attack key": ({"attack": "pgd:stpes=3"}, "unknown key 'stpes' in --attack pgd:stpes=3; did you mean 'steps'?"),
    "attack value": ({"attack": "pgd:steps=few"}, "--attack pgd:steps=few.steps is 'few'"),
    "attack pair": ({"attack": "pgd:steps"}, "has 'steps' where a new key=value is needed"),
    "attack key twice": ({"attack": "pgd:steps=1,steps=2"}, "has 'steps=2' where a new key=value is needed"),
    "transfer": ({"attack": "transfer"}, "--attack transfer crafts on another model, which has no short form"),
    "no samples": ({"samples": "0"}, "--samples is 0"),
    "seed": ({"seed": "-1"}, "--seed -1"),
    "mean": ({"mean": "0.5"}, "--mean is '0.5' and --std None but both need one number per channel"),
    "std": ({"mean": "0.5", "std": "0"}, "both need one number per channel, std above 0"),
    "mean is NaN": ({"mean": "nan", "std": "1"}, "both need one number per channel"),
    "words": ({"mean": "half", "std": "1"}, "--mean is .*half"),
    "channels": ({"mean": "0,0,0", "std": "1,1,1"}, r"mean has 3 numbers but samples have shape \(1, 4, 4\)"),
    "size": ({"size": "224"}, "npz:toy.npz cannot be scaled to a size of 224 pixels"),
    "device": ({"device": "tpux"}, "device 'tpux' cannot be used here"),
    "method": ({"method": "AT"}, "--method goes with a recipe; leave it out"),
    "set": ({"set": "a=1"}, "--set goes with a recipe; leave it out"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_sentence(user_folder: Path, call: Any, name: str) -> None:
    torch.save({"shift": torch.ones(3)}, user_folder / "misfit.pt")
    change, pattern = BAD[name]
    message = refused(call(*args(**change)))
    assert re.search(pattern, message), message
    assert not (user_folder / "out" / MODEL / "records").exists()


@pytest.mark.parametrize("text", ["0", "a", "224:256", "1:2:3", "-4", "", "999999"])
def test_invalid_sizes_are_refused(user_folder: Path, call: Any, text: str) -> None:
    assert "--size is " in refused(call(*args(data="imagefolder:x", size=text)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["quickstart", "--model", "nets:build"], "the recipe 'quickstart' and --model nets:build were given but one"),
        ([], "name a recipe, or your own model, e.g. --model nets:build"),
        (["quickstart", "--data", "digits"], "--data goes with --model; leave it out or use --set"),
        (["quickstart", "--attack", "pgd"], "--attack goes with --model; leave it out or use --set"),
        (["quickstart", "--samples", "9"], "--samples goes with --model"),
    ],
)
def test_recipe_and_model_options_are_exclusive(
    user_folder: Path, call: Any, arguments: list[str], message: str
) -> None:
    assert message in refused(call("evaluate", *arguments))


@pytest.mark.parametrize(
    "content", ["import nowhere_at_all", "raise ValueError('no\\nway')", "import sys; sys.exit(3)"]
)
def test_module_that_cannot_be_imported_is_refused(user_folder: Path, call: Any, content: str) -> None:
    (user_folder / "half.py").write_text(content)
    message = refused(call(*args(model="half:build")))
    assert re.match("importing half raised (ModuleNotFoundError|ValueError|SystemExit): ", message)


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_missing_library_is_reported_with_its_install_command(
    user_folder: Path, call: Any, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    message = refused(call(*args(model=f"{library}:resnet18")), 1)
    assert message.endswith(f"needs {library}, which is not installed; run: pip install {library}")


TIMM = """
from nets import Bright
def create_model(name, pretrained, num_classes):
    if name != "bright" or pretrained or num_classes != 3:
        raise RuntimeError(f"Unknown model ({name})")
    return Bright()
"""
TORCHVISION = """
from nets import Bright
def get_model(name, weights, num_classes):
    if name != "bright" or weights is not None or num_classes != 3:
        raise ValueError(f"Unknown model {name}")
    return Bright()
"""


@pytest.fixture
def libraries(user_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Fake packages timm and torchvision, and data with known classes."""
    site = user_folder / "site"
    (site / "torchvision" / "models").mkdir(parents=True)
    (site / "timm.py").write_text(TIMM)
    (site / "torchvision" / "__init__.py").write_text("")
    (site / "torchvision" / "models" / "__init__.py").write_text(TORCHVISION)
    monkeypatch.syspath_prepend(str(site))
    test = toy(90).train
    np.savez(user_folder / "toy.npz", x_test=test.x.numpy(), y_test=test.y.numpy(), y_train=test.y.numpy())
    return site


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_models_of_timm_and_torchvision_are_evaluated(
    libraries: Path, user_folder: Path, call: Any, library: str
) -> None:
    done = call(*args(model=f"{library}:bright", attack="pgd:steps=20,restarts=3,loss=logit_difference"))
    assert done.code == 0, done.err
    assert stored(user_folder / "out").held(EPS, "linf").tolist() == held_by_hand(EPS).tolist()
    message = refused(call(*args(model=f"{library}:dark")))
    assert re.match(rf"building {library}:dark raised (RuntimeError|ValueError): Unknown model", message)


def test_libraries_are_not_imported_for_other_models(libraries: Path, user_folder: Path, call: Any) -> None:
    (libraries / "timm.py").write_text("raise RuntimeError")
    (libraries / "torchvision" / "__init__.py").write_text("raise RuntimeError")
    assert call(*args(attack="noise")).code == 0
    assert "timm" not in sys.modules
    assert "importing timm raised RuntimeError" in refused(call(*args(model="timm:bright")))


def test_model_with_too_many_outputs_is_refused(libraries: Path, user_folder: Path, call: Any) -> None:
    message = refused(call(*args(model="nets:wide", weights=None)))
    assert "the model has 4 outputs but npz:toy.npz has 3 classes; give data of its own classes" in message


def pictures(folder: Path, side: int = 4, scale: int = 1) -> DataSet:
    """Write the toy images as files, one folder per class, each pixel enlarged."""
    data = toy(90)
    for i, (x, y) in enumerate(zip(data.train.x, data.train.y.tolist(), strict=True)):
        pixels = np.kron((x[0] * 255).round().byte().numpy(), np.ones((scale, scale), np.uint8))
        (folder / "abc"[y]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / "abc"[y] / f"{i:03}.png")
    return data


@pytest.mark.parametrize("layout", ["plain", "test", "val"])
def test_image_folders_are_evaluated(user_folder: Path, call: Any, layout: str) -> None:
    pictures(user_folder / "photos" if layout == "plain" else user_folder / "photos" / layout)
    if layout == "test":
        (user_folder / "photos" / "train" / "a").mkdir(parents=True)  # only its class names are needed
        for name in "bc":
            (user_folder / "photos" / "train" / name).mkdir()
    done = call(*args(data="imagefolder:photos", attack="pgd:steps=20,restarts=3,loss=logit_difference"))
    assert done.code == 0, done.err
    records = stored(user_folder / "out")
    assert records.columns["y"].tolist() == sorted(records.columns["y"].tolist())  # folders are read class by class
    assert len(records) == 72
    assert abs(int(records.held(EPS, "linf").sum()) - int(held_by_hand(EPS).sum())) <= 2  # pixels were rounded


def test_size_option_scales_images(user_folder: Path, call: Any) -> None:
    pictures(user_folder / "photos", scale=3)
    message = refused(call(*args(model="nets:narrow", weights=None, data="imagefolder:photos")))
    assert "the model has 2 outputs but image-folder:photos has 3 classes" in message
    done = call(*args(data="imagefolder:photos", size="4", attack="noise", samples="30"))
    assert done.code == 0, done.err
    records = stored(user_folder / "out")
    assert len(records) == 30
    assert records.correct.mean() > 0.9


def test_control_characters_in_file_names_are_not_printed(user_folder: Path, call: Any) -> None:
    pictures(user_folder / "photos")
    (user_folder / "photos" / "a" / "\x1b[2J\x9b31m.png").write_bytes(b"no picture")
    message = refused(call(*args(data="imagefolder:photos")))
    assert "cannot be read as a JPEG" in message
    assert message.isprintable()


def test_identity_depends_on_nonpersistent_buffers() -> None:
    first, second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    second.load_state_dict(first.state_dict())
    for net, shift in ((first, 0.0), (second, 1.0)):
        net.register_buffer("shift", torch.full((2,), shift), persistent=False)
    assert identity("a:b", first)["weights"] != identity("a:b", second)["weights"]
    second.shift.zero_()
    assert identity("a:b", first) == identity("a:b", second)
