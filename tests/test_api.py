"""One call from Python: results equal the command line's and a closed form; every way to give models, data, attacks."""

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast
from holdfast.geometry import LInf, Threat
from holdfast.records.records import Records
from holdfast.statistics import Share

THREAT = "linf:1/10"
N = 60


class Line(nn.Module):
    """Two logits that differ by w·x + b: a sample is robust within eps if |w·x + b| > eps ||w||_1."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        with torch.no_grad():
            self.layer.weight.copy_(torch.tensor([[0.0, 0.0], [1.0, -2.0]]))
            self.layer.bias.copy_(torch.tensor([0.0, 0.5]))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layer(x)
        return logits


def samples() -> tuple[Tensor, Tensor, Tensor]:
    """Points, their labels (some wrong), and the mask of those that hold at eps 0.1."""
    x = 0.1 + 0.8 * torch.rand(N, 2, generator=torch.Generator().manual_seed(0))
    score = x @ torch.tensor([1.0, -2.0]) + 0.5
    y = (score > 0).long()
    y[::10] = 1 - y[::10]
    right = (score > 0).long() == y
    return x, y, right & (score.abs() > 0.1 * 3)


X, Y, HELD = samples()


def sign(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The exact attack on a line, as a user would write it."""
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(model(x), y, reduction="sum"), x)
    return (x + 0.1 * gradient.sign()).clamp(0, 1)


def evaluate(*given: Any, **options: Any) -> holdfast.Result:
    return holdfast.evaluate(*given, **{"threat": THREAT, "progress": False} | options)


def test_robust_accuracy_is_that_of_the_closed_form() -> None:
    result = evaluate(Line(), X, Y)
    assert np.array_equal(result.held, HELD.numpy())
    assert float(result.robust_accuracy) == HELD.float().mean()
    assert result.robust_accuracy.low < result.robust_accuracy.value < result.robust_accuracy.high
    assert result.robust_accuracy.n == N


COMMAND = ("evaluate", "--model", "lines:build", "--data", "npz:toy.npz", "--threat", THREAT)


def user_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module and data as a user has them, in the working directory."""
    (folder / "lines.py").write_text("from test_api import Line\n\n\ndef build():\n    return Line()\n")
    np.savez(folder / "toy.npz", x_test=X.numpy(), y_test=Y.numpy())
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(Path(__file__).parent)


def test_examples_from_a_file_are_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Any) -> None:
    user_files(tmp_path, monkeypatch)
    np.savez("adv.npz", x_adv=sign(Line(), X.clone(), Y).detach().numpy())
    done = call(*COMMAND, "--examples", "adv.npz", "--out", "judged", "--samples", 30)
    chosen = torch.arange(30) * 2
    share = Share.of(HELD[chosen].numpy())
    assert f"examples              {100 * share.value:.1f} [" in done.out
    assert "n = 30" in done.out
    assert np.array_equal(Records.load(Path("judged/lines-build/records")).columns["index"], chosen.numpy())
    again = call(*COMMAND, "--examples", "adv.npz", "--out", "judged")
    assert again.code == 2
    assert "judged has a report already, which would be replaced; choose another --out" in again.err
    refused = call(*COMMAND, "--examples", "toy.npz")
    assert refused.code == 2
    assert "toy.npz lacks x_adv" in refused.err


def test_results_are_those_of_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Any) -> None:
    user_files(tmp_path, monkeypatch)
    attacks = ["noise", "fgsm", "pgd:steps=5", "triage"]
    options = [word for attack in attacks for word in ("--attack", attack)]
    assert call(*COMMAND, *options, "--seed", "3", "--out", "out").code == 0
    stored = Records.load(tmp_path / "out" / "lines-build" / "seed-3" / "records")
    (found,) = evaluate(Line(), X, Y, attacks=attacks, rng=3).records.values()
    assert list(found.columns) == list(stored.columns)
    assert [name for name in stored.columns if not np.array_equal(stored.columns[name], found.columns[name])] == []
    assert found.arrays.keys() == stored.arrays.keys()


def dataset() -> TensorDataset:
    return TensorDataset(X, Y)


@pytest.mark.parametrize(
    "given",
    [
        (X.numpy(), Y.numpy()),
        (X.double(), Y.tolist()),
        (dataset(),),
        (DataLoader(dataset(), batch_size=7),),
    ],
    ids=["arrays", "float64 and a list", "Dataset", "DataLoader"],
)
def test_data_may_be_arrays_a_dataset_or_a_loader(given: tuple[Any, ...]) -> None:
    result = evaluate(Line(), *given, attacks="pgd:steps=5")
    assert np.array_equal(result.held, evaluate(Line(), X, Y, attacks="pgd:steps=5").held)


def test_data_sets_are_known_by_name() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    result = evaluate(net, "digits", attacks="fgsm", samples=20)
    assert result.robust_accuracy.n == 20


def test_function_object_and_name_are_the_same_attack_on_a_line() -> None:
    fgsm = holdfast.FGSM(threat=Threat(LInf(), 0.1))
    for attacks in (sign, "fgsm", fgsm, [fgsm], {"mine": sign}, lambda m, x, y: sign(m, x, y).detach().numpy()):
        assert np.array_equal(evaluate(Line(), X, Y, attacks=attacks).held, HELD.numpy())


def test_passes_of_a_function_are_counted_and_the_model_is_left_as_found() -> None:
    model = Line().train()
    seen = []

    def crafted(given: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        seen.append((given is model, given.training, given.layer.weight.requires_grad))  # type: ignore[union-attr]
        return sign(given, x, y)

    torch.manual_seed(1)
    state = torch.get_rng_state()
    result = evaluate(model, X, Y, attacks=crafted)
    attacked = int(result.clean_accuracy.successes)
    (facts,) = result.records["Line"].attacks.values()
    assert (facts.forwards, facts.backwards) == (attacked, attacked)
    assert seen == [(True, False, False)]
    assert model.training
    assert model.layer.weight.requires_grad
    assert model.layer.weight.grad is None
    assert torch.equal(torch.get_rng_state(), state)


def test_points_outside_the_threat_earn_nothing() -> None:
    result = evaluate(Line(), X, Y, attacks={"far": lambda model, x, y: 1 - x})
    assert result.robust_accuracy == result.clean_accuracy
    assert f"far returned {result.clean_accuracy.successes} points outside the threat" in str(result)


def test_models_by_name_stand_side_by_side() -> None:
    worse = Line()
    worse.layer.weight.data.mul_(0.01)
    result = evaluate({"good": Line(), "<b>": worse}, X, Y, attacks="fgsm")
    assert "good" in str(result).splitlines()[0]
    assert result["good"].robust_accuracy != result["<b>"].robust_accuracy
    assert "&lt;b&gt;" in result._repr_html_()
    assert "<b>" not in result._repr_html_()
    with pytest.raises(ValueError, match=r"this result has 2 models; choose one, e.g. result\['good'\]"):
        _ = result.robust_accuracy
    with pytest.raises(KeyError, match="no model 'bad' in this result; it has good, <b>"):
        result["bad"]


def test_union_of_threats_is_per_sample() -> None:
    threats = ["linf:0.1", Threat(holdfast.L2(), 0.25)]
    result = evaluate(Line(), X, Y, threat=threats, attacks="pgd:steps=20")
    each = [evaluate(Line(), X, Y, threat=threat, attacks="pgd:steps=20").held for threat in threats]
    turned = evaluate(Line(), X, Y, threat=threats[::-1], attacks="pgd:steps=20")
    assert not np.array_equal(each[0], each[1])
    assert np.array_equal(result.held, each[0] & each[1])
    assert np.array_equal(turned.held, result.held)
    assert "worst case, all threats" in str(result)


def test_frame_has_one_row_per_model_and_sample() -> None:
    pytest.importorskip("pandas")
    frame = evaluate({"a": Line(), "b": Line()}, X, Y, attacks="fgsm").to_frame()
    assert len(frame) == 2 * N
    assert frame[frame.model == "a"].held.tolist() == HELD.tolist()
    assert "fooled:linf:fgsm" in frame.columns


def test_without_pandas_the_columns_are_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    result = evaluate(Line(), X, Y, attacks="noise")
    with pytest.raises(ImportError, match=r"to_frame needs pandas.*pip install pandas, or use result.columns\(\)"):
        result.to_frame()
    assert len(result.columns()["held"]) == len(X)


def test_saved_records_are_read_back_and_never_replaced(tmp_path: Path) -> None:
    result = evaluate(Line(), X, Y, attacks="fgsm")
    result.save(tmp_path)
    assert np.array_equal(
        Records.load(tmp_path / "Line" / "records").held(0.1, "linf"),
        HELD.numpy(),
    )
    with pytest.raises(ValueError, match="exists already and nothing is replaced"):
        result.save(tmp_path)


def test_page_holds_the_numbers(tmp_path: Path) -> None:
    result = evaluate(Line(), X, Y, attacks="fgsm")
    text = result.page(tmp_path / "page.html").read_text()
    assert f"{100 * result.robust_accuracy.value:.1f}" in text


def test_table_has_intervals_n_and_how_it_was_crafted() -> None:
    text = str(evaluate(Line(), X, Y, attacks="fgsm", arithmetic="float32"))
    share = evaluate(Line(), X, Y, attacks="fgsm").robust_accuracy
    assert f"{100 * share.value:.1f} [{100 * share.low:.1f}, {100 * share.high:.1f}]" in text
    assert "n = 60; brackets are 95 % Wilson intervals." in text
    assert "Crafted in float32 on" in text
    assert repr(evaluate(Line(), X, Y, attacks="fgsm", arithmetic="float32")) == text  # in an interactive session


def test_progress_can_be_turned_off(capsys: pytest.CaptureFixture[str]) -> None:
    evaluate(Line(), X, Y, attacks="fgsm")
    assert capsys.readouterr() == ("", "")
    evaluate(Line(), X, Y, attacks="fgsm", progress=True)
    assert "evaluate Line: done (fgsm)" in capsys.readouterr().err


@pytest.mark.parametrize("budget", [{"passes": N + 1}, {"seconds": 1e-9}])
def test_budget_leaves_attacks_out_and_says_so(budget: dict[str, Any]) -> None:
    result = evaluate(Line(), X, Y, attacks=["fgsm", "pgd:steps=5"], **budget)
    assert "pgd:steps=5" not in result.records["Line"].attacks
    assert "The budget did not suffice for all of" in str(result)
    assert result.clean_accuracy.n == N


def test_scikit_learn_classifier_is_attacked_through_its_probabilities() -> None:
    classifier = LogisticRegression().fit(X.numpy(), Y.numpy())
    result = evaluate(classifier, X, Y, attacks=["square:queries=100", "rays:queries=100"])
    assert result.robust_accuracy.successes < result.clean_accuracy.successes
    with pytest.raises(ValueError, match="LogisticRegression has no network, so fgsm finds no gradients"):
        evaluate(classifier, X, Y, attacks="fgsm")


def test_labels_alone_get_attacks_that_need_no_scores() -> None:
    result = evaluate(lambda x: Line()(x).argmax(1), X[:5], Y[:5])
    assert list(result.records["model"].attacks) == ["noise", "rays", "hopskipjump"]


def test_judge_equals_the_verdict_on_the_attack() -> None:
    x_adv = sign(Line(), X.clone(), Y).detach()
    result = holdfast.judge(Line(), X, x_adv, Y, THREAT)
    assert np.array_equal(result.held, HELD.numpy())
    (records,) = result.records.values()
    assert list(records.attacks) == ["examples"]
    outside = holdfast.judge(Line(), X, 1 - X, Y, THREAT)
    assert outside.robust_accuracy == outside.clean_accuracy


def test_judge_takes_several_threats() -> None:
    x_adv = sign(Line(), X.clone(), Y).detach()
    result = holdfast.judge(Line(), X, x_adv, Y, [THREAT, "l2:0.01"])
    assert np.array_equal(result.held, HELD.numpy())


class Answers(nn.Module):
    """A model that answers with what ``answer`` makes of its logits."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.line, self.answer = Line(), answer

    def forward(self, x: Tensor) -> Any:
        return self.answer(self.line(x))


BAD: dict[str, tuple[Any, str]] = {
    "no labels": (lambda: evaluate(Line(), X), "but there are no labels; give y"),
    "labels of another number": (lambda: evaluate(Line(), X, Y[:3]), "has 60 samples but 3 labels"),
    "label -1": (lambda: evaluate(Line(), X, Y - 1), "has labels from -1 to 0 but labels start at 0"),
    "label 2": (lambda: evaluate(Line(), X, Y + 1), "has 2 outputs but own has labels up to 2"),
    "labels of floats": (lambda: evaluate(Line(), X, Y.float()), "has labels of type float32; give integers"),
    "labels of text": (lambda: evaluate(Line(), X, ["a"] * N), "give class numbers from 0"),
    "nan": (lambda: evaluate(Line(), X * torch.nan, Y), "values of x that are NaN or infinite"),
    "outside the box": (lambda: evaluate(Line(), X * 3, Y), "but the threat allows [0, 1]; put normalization"),
    "no samples": (lambda: evaluate(Line(), X[:0], Y[:0]), "is empty"),
    "empty loader": (lambda: evaluate(Line(), DataLoader(TensorDataset(X[:0], Y[:0]))), "the given set is empty"),
    "shuffled": (lambda: evaluate(Line(), DataLoader(dataset(), shuffle=True)), "the given loader shuffles"),
    "data of no kind": (lambda: evaluate(Line(), 3), "the data is a int; give x and y"),
    "shape of samples": (lambda: evaluate(Line(), torch.rand(4, 3), Y[:4]), "given 4 samples of shape (3,)"),
    "threat": (lambda: evaluate(Line(), X, Y, threat="linf"), "has the form norm:eps"),
    "norm": (lambda: evaluate(Line(), X, Y, threat="lnf:1"), "did you mean 'linf'?"),
    "threat twice": (lambda: evaluate(Line(), X, Y, threat=[THREAT, THREAT]), "at least one is needed, and each once"),
    "no threat": (lambda: evaluate(Line(), X, Y, threat=[]), "at least one is needed, and each once"),
    "threat of no kind": (lambda: evaluate(Line(), X, Y, threat=0.1), "a text such as 'linf:8/255' but is 0.1"),
    "attack": (lambda: evaluate(Line(), X, Y, attacks="pdg"), "did you mean 'pgd'?"),
    "steps": (lambda: evaluate(Line(), X, Y, attacks="pgd:steps=2.5"), "steps is 2.5"),
    "attack of no kind": (lambda: evaluate(Line(), X, Y, attacks=[3]), "an attack is 3 but must be a name"),
    "attack twice": (lambda: evaluate(Line(), X, Y, attacks=["fgsm", "fgsm"]), "the attack 'fgsm' is given twice"),
    "other threat": (
        lambda: evaluate(Line(), X, Y, attacks=holdfast.FGSM(threat=Threat(LInf(), 0.2))),
        "FGSM attacks at linf:0.2 but the threat is linf:0.1",
    ),
    "what a function returns": (
        lambda: evaluate(Line(), X, Y, attacks=lambda model, x, y: (x, x, y)),
        "returned a tuple for inputs of shape",
    ),
    "rng": (lambda: evaluate(Line(), X, Y, rng=-1), "rng is -1 but must be a seed"),
    "rng of text": (lambda: evaluate(Line(), X, Y, rng="0"), "rng is '0' but must be a seed"),
    "samples": (lambda: evaluate(Line(), X, Y, samples=0), "samples is 0 but must be a number of samples"),
    "budget": (lambda: evaluate(Line(), X, Y, seconds=0), "the budget is 0 seconds"),
    "tuple": (lambda: evaluate(Answers(lambda z: (z, z)), X, Y), "the model returned tuple for 8 inputs"),
    "probabilities": (lambda: evaluate(Answers(lambda z: z.softmax(1)), X, Y), "seems to give probabilities"),
    "one logit": (lambda: evaluate(Answers(lambda z: z[:, 1:]), X, Y), "has one output but one for each class"),
    "nan model": (lambda: evaluate(Answers(lambda z: z * torch.nan), X, Y), "gives NaN or infinite outputs"),
    "no model": (lambda: evaluate({}, X, Y), "there is no model to evaluate"),
    "model of no kind": (lambda: evaluate(3, X, Y), "the model is a int; give a torch.nn.Module"),
    "callable": (lambda: evaluate(lambda x: x[:, 0], X, Y), "but scores of shape (8, classes) or integer labels"),
    "judged shape": (lambda: holdfast.judge(Line(), X, X[:, :1], Y, THREAT), "x_adv has shape (60, 1) but x has"),
    "judged number": (lambda: holdfast.judge(Line(), X, X[:3], Y, THREAT), "has 3 samples but 60 labels"),
}


@pytest.mark.parametrize(("call", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_one_sentence(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as raised:
        call()
    assert message in str(raised.value)


def test_version_is_that_of_the_package(call: Any) -> None:
    assert holdfast.__version__ == version("holdfast")
    assert call("--version").out == f"holdfast {holdfast.__version__}\n"


class Holding:
    """An attack that holds its model, as those of torchattacks do."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        return sign(self.model, x, y)


def test_an_attack_that_holds_its_model_is_told_how_it_is_called() -> None:
    model = Line()
    attack = Holding(model)
    with pytest.raises(
        ValueError, match=r"the attack Holding raised TypeError: .*; it is called as attack\(model, x, y"
    ):
        evaluate(model, X, Y, attacks=attack)
    found = evaluate(model, X, Y, attacks={"held": lambda model, x, y: attack(x, y)})
    assert np.array_equal(found.held, HELD.numpy())


def test_errors_of_a_function_are_one_sentence() -> None:
    def broken(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        raise KeyError("no\nsuch")

    with pytest.raises(RuntimeError, match="the attack broken raised KeyError"):
        evaluate(Line(), X, Y, attacks=broken)


def test_a_classifier_with_other_class_names_is_refused() -> None:
    for names in (["no", "yes"], [1, 2]):
        classifier = LogisticRegression().fit(X.numpy(), np.array(names)[Y.numpy()])
        with pytest.raises(ValueError, match=rf"the classes of LogisticRegression are {names[0]}, ..., {names[1]} but"):
            evaluate(classifier, X, Y)


class Broken(Line):
    """A model that gives NaN for the sample of index 5."""

    def forward(self, x: Tensor) -> Tensor:
        same = (x == X[5]).flatten(1).all(1)
        return torch.where(same[:, None], torch.nan, super().forward(x))


def test_a_clean_sample_without_finite_outputs_counts_as_misclassified_and_harms_no_other() -> None:
    attacks = ["pgd:steps=3", "triage", "square:queries=30"]
    results = [evaluate(model, X, Y, threat=THREAT, attacks=attacks) for model in (Broken(), Line())]
    assert f"Broken gives NaN or infinite outputs for 1 of {N} samples" in str(results[0])
    broken, whole = (next(iter(result.records.values())) for result in results)
    assert broken.facts["clean"]["not_finite"] == 1
    assert "not_finite" not in whole.facts["clean"]
    assert broken.columns["label"][5] == -1
    others = np.arange(N) != 5
    for name in whole.columns:
        if name.startswith(("fooled", "label")):
            assert np.array_equal(broken.columns[name][others], whole.columns[name][others]), name
