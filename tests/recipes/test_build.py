"""Conversion of recipe tables to dataclasses and back."""

import json
from dataclasses import dataclass
from functools import partial
from math import inf, nan

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from holdfast.attacks.pgd import PGD
from holdfast.contracts import Needs, Norm
from holdfast.geometry import L2, LInf
from holdfast.losses.classification import cross_entropy, logit_difference
from holdfast.recipes import kinds
from holdfast.recipes.build import (
    build,
    build_attack,
    build_loss,
    build_method,
    build_threat,
    json_table,
    scalar,
    table_of,
)
from tiny_study import THREAT


@dataclass(frozen=True, kw_only=True)
class Things:
    count: int
    share: float | None = 0.5
    many: tuple[float, ...] = ()
    deep: tuple[float, ...] | None = None
    switch: bool = False
    word: str = "x"


@given(st.integers(-999, 999), st.integers(1, 999))
def test_fractions_are_converted_to_numbers_also_in_lists(above: int, below: int) -> None:
    text = f"{above}/{below}"
    built = build(Things, {"count": 1, "share": text, "many": [text, 1], "deep": [f" {above} / {below} "]}, "here")
    assert built == Things(count=1, share=above / below, many=(above / below, 1.0), deep=(above / below,))


@pytest.mark.parametrize("text", ["1/0", "1/00", "/2", "1/", "1/2/3", "a/b", "1/-2", "1 2/3"])
def test_malformed_fractions_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"here\.share is .*: input should be a valid number"):
        build(Things, {"count": 1, "share": text}, "here")


def test_fractions_stay_text_in_text_fields() -> None:
    assert build(Things, {"count": 1, "word": "8/255"}, "here").word == "8/255"


@pytest.mark.parametrize(
    ("key", "value"), [("count", True), ("share", False), ("count", "x"), ("many", 3), ("word", 3)]
)
def test_wrong_types_are_refused_with_their_key(key: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^here\.{key} is "):
        build(Things, {"count": 1} | {key: value}, "here")


def test_none_is_allowed_only_in_optional_fields() -> None:
    assert build(Things, {"count": 1, "share": None}, "here").share is None
    with pytest.raises(ValueError, match=r"here\.count is None"):
        build(Things, {"count": None}, "here")


def test_missing_required_keys_are_named() -> None:
    with pytest.raises(ValueError, match=r"^here needs count$"):
        build(Things, {}, "here")
    with pytest.raises(ValueError, match=r"^here must be a table of settings but is \[1\]$"):
        build(Things, [1], "here")  # type: ignore[arg-type]


def test_inf_is_a_number() -> None:
    assert scalar(float, "inf", "here") == inf
    assert scalar(float, inf, "here") == inf


def test_threats_are_built_from_text_and_tables() -> None:
    assert build_threat("L2:1/2", "t") == build_threat({"norm": "l2", "eps": 0.5}, "t")
    assert build_threat({"norm": "linf", "eps": inf, "low": -inf, "high": inf}, "t").high == inf
    boxed = build_threat("linf:8/255:-1:1/2", "t")
    assert (boxed.eps, boxed.low, boxed.high) == (8 / 255, -1, 0.5)
    for text in ("linf", "linf:1:2", "linf:1:2:3:4", ""):
        with pytest.raises(ValueError, match=r"t is .* but has the form norm:eps or norm:eps:low:high"):
            build_threat(text, "t")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A field that is a norm."""

    norm: Norm = L2()  # noqa: RUF009 - a frozen value


def test_norms_are_built_from_their_name() -> None:
    assert build(Measured, {}, "m").norm == L2()
    assert build(Measured, {"norm": "LInf"}, "m").norm == LInf()
    assert table_of(Measured(norm=LInf())) == {"norm": "linf"}
    with pytest.raises(ValueError, match=r"^unknown norm 'l3' in m\.norm; did you mean"):
        build(Measured, {"norm": "l3"}, "m")


def test_eps_of_an_attack_keeps_norm_and_box_of_the_threat() -> None:
    attack = build_attack({"name": "pgd", "eps": "1/4"}, "a", build_threat({"norm": "l2", "eps": 1, "low": -1}, "t"))
    assert (attack.threat.norm.name, attack.threat.eps, attack.threat.low) == ("l2", 0.25, -1)
    with pytest.raises(ValueError, match=r"^unknown key 'eps' in a; known: attack, scale$"):
        build_attack({"name": "feature_norm", "eps": 0.1, "attack": {"name": "pgd"}}, "a", attack.threat)


def test_losses_are_built_with_settings() -> None:
    plain = build_loss("logit_difference", "here")
    assert plain is logit_difference
    loss = build_loss({"name": "logit_difference", "kappa": "1/2"}, "here")
    assert isinstance(loss, partial)
    assert (loss.func, loss.keywords) == (logit_difference, {"kappa": 0.5})
    assert table_of(loss) == {"name": "logit_difference", "kappa": 0.5}
    with pytest.raises(ValueError, match=r"here\.kappa is 'big'"):
        build_loss({"name": "logit_difference", "kappa": "big"}, "here")
    with pytest.raises(ValueError, match="unknown key 'kappa' in here; known: none"):
        build_loss({"name": "logit_pairing", "kappa": 1}, "here")
    with pytest.raises(ValueError, match="here must be a table of settings but is 3"):
        build_loss(3, "here")


def test_tables_of_attacks_build_the_same_attack_again() -> None:
    attack = PGD(threat=THREAT, steps=3, loss=partial(cross_entropy, smoothing=0.1), keep="worst")
    again = build_attack(table_of(attack), "here", None)
    assert table_of(again) == table_of(attack)
    assert table_of(attack)["loss"] == {"name": "cross_entropy", "smoothing": 0.1}


def test_json_tables_hold_only_json_values() -> None:
    value = {"title": "Infinity -Infinity NaN", "low": -inf, "most": [inf, nan, 1.5], "deep": {"x": inf}, "n": None}
    text = json.dumps(json_table(value), allow_nan=False)
    assert json.loads(text) == {
        "title": "Infinity -Infinity NaN",
        "low": "-inf",
        "most": ["inf", "nan", 1.5],
        "deep": {"x": "inf"},
        "n": None,
    }
    assert json_table(build_threat("l2:inf", "t")) == {"norm": "l2", "eps": "inf", "low": 0.0, "high": 1.0}


@dataclass(eq=False)
class Drawn(nn.Module):
    """A method with parameters that are initialized at random."""

    scale: float = 1.0
    needs = Needs()

    def __post_init__(self) -> None:
        super().__init__()
        self.proxies = nn.Parameter(self.scale * torch.randn(3, 4))


def test_method_has_the_same_initial_parameters_whenever_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "member", lambda kind, name: Drawn)
    before = torch.get_rng_state()
    first, second = (build_method({"name": "drawn"}, "m", THREAT, PGD(threat=THREAT)) for _ in range(2))
    assert torch.equal(first.proxies, second.proxies)  # type: ignore[attr-defined]
    assert torch.equal(torch.get_rng_state(), before)
    assert table_of(first) == {"scale": 1.0}


def test_method_that_is_no_dataclass_is_named_by_its_class() -> None:
    assert table_of(nn.Linear(1, 1)) == "Linear"
