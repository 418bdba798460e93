"""Claims, comparisons and verdicts of the ledger."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student

from holdfast.recipes import schema
from holdfast.records.facts import AttackFacts
from holdfast.records.records import Records
from holdfast.report.ledger import budget
from holdfast.report.ledger.claims import Answer, Claim, claims, figures, published
from holdfast.report.ledger.comparison import Comparison, Evidence, compare, visible
from holdfast.report.ledger.outcome import outcome, outcomes
from holdfast.report.ledger.page import ledger_page, markdown
from holdfast.report.page import render
from holdfast.statistics import Estimate, mcnemar

ATTACK = AttackFacts(norm="linf", eps=0.3)


def evidence(method: str, seed: int, right, index=None, **estimates: Estimate) -> Evidence:
    """A model of the recipe "r" that gets these samples right under PGD."""
    right = np.asarray(right, bool)
    index = np.arange(len(right)) if index is None else np.asarray(index)
    zeros = np.zeros(len(right), int)
    columns = {"index": index, "y": zeros, "label": zeros, "fooled:linf:PGD": ~right, "label:linf:PGD": 1 - right}
    columns["distance:linf:PGD"] = np.full(len(right), 0.3)
    facts = {"attacks": {"PGD": ATTACK.facts()}, "recipe": {"threat": {"norm": "linf", "eps": 0.3}}}
    return Evidence("r", method, seed, Records(columns, facts), estimates=estimates)


def claim(**settings) -> Claim:
    table = {"id": "c", "paper": "p", "statement": "A > B", "pairs": [("A", "B")], "measures": ["PGD"], "least": 0.5}
    return Claim(**(table | {"answers": [Answer(recipe="r", measures=("PGD",))]} | settings))


def draws(rng: np.random.Generator, both: np.ndarray, lead: float, differ: float) -> tuple[np.ndarray, np.ndarray]:
    """Two models of which one alone is right on the share ``differ`` of the samples, the first more often by lead."""
    one = rng.random(len(both)) < differ
    first = rng.random(len(both)) < (1 + lead / differ) / 2
    return np.where(one, first, both), np.where(one, ~first, both)


MASKS = st.lists(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=7, max_size=7), min_size=1, max_size=3)


@given(MASKS)
def test_lead_and_error_equal_a_loop_over_samples_and_seeds(seeds) -> None:
    runs = [[evidence(m, s, [pair[i] for pair in row]) for s, row in enumerate(seeds)] for i, m in enumerate("AB")]
    found = compare(runs[0], runs[1], "PGD", 100, ("A", "B"))
    gains = [sum(a - b for a, b in (row[i] for row in seeds)) / len(seeds) for i in range(7)]
    mean = sum(gains) / 7
    over_samples = math.sqrt(sum((gain - mean) ** 2 for gain in gains) / 6 / 7)
    each = [sum(a - b for a, b in row) / 7 for row in seeds]
    part, freedom = 0.0, math.inf
    if len(each) > 1:
        spreads = [np.var([sum(pair[i] for pair in row) / 7 for row in seeds], ddof=1) for i in range(2)]
        inside = [np.var([row[i][0] - row[i][1] for row in np.array(seeds, int)], ddof=1) for i in range(7)]
        counted = sum(inside) / 7 / 7 / len(each)  # in the error over samples already
        part = max(0, sum(spreads) / len(each) - counted)  # the variance of a difference of two means over seeds
    error = math.sqrt(over_samples**2 + part)
    if part:
        freedom = 2 * (len(each) - 1) * (error**2 / part) ** 2
    assert found.lead == pytest.approx(100 * mean)
    assert found.error == pytest.approx(100 * error)
    assert found.freedom == pytest.approx(freedom)
    assert found.each == pytest.approx([100 * e for e in each])
    quantile = student(freedom).ppf(0.975)
    assert found.low == pytest.approx(100 * mean - quantile * found.error)
    assert found.high == pytest.approx(100 * mean + quantile * found.error)
    for p, row in zip(found.ps, seeds, strict=True):
        assert p == mcnemar(*(np.array(mask) for mask in zip(*row, strict=True)))


def test_only_common_samples_and_seeds_are_compared_whatever_their_order() -> None:
    a = [evidence("A", 0, [1, 0, 1, 1], [7, 3, 5, 9]), evidence("A", 2, [0, 0, 0, 0], [7, 3, 5, 9])]
    b = [evidence("B", 0, [0, 1, 0], [3, 7, 5]), evidence("B", 1, [1, 1, 1], [3, 7, 5])]
    found = compare(a, b, "PGD", 100, ("A", "B"))
    assert (found.seeds, found.n, found.each) == ((0,), 3, (pytest.approx(100 / 3),))
    with pytest.raises(ValueError, match="not measured on the same samples"):
        compare([evidence("A", 0, [1, 1])], [evidence("B", 0, [1, 1], [8, 9])], "PGD", 100, ("A", "B"))


def test_numbers_of_an_analysis_are_compared_by_their_intervals() -> None:
    r = [Estimate(1.5, 1.4, 1.6, 100), Estimate(1.2, 1.0, 1.4, 90)]
    a, b = (evidence(m, 0, [1], r=e) for m, e in zip("AB", r, strict=True))
    found = compare([a], [b], "r", -1, ("A", "B"))
    assert found.lead == pytest.approx(-0.3)
    assert found.error == pytest.approx(math.hypot(0.2, 0.4) / (2 * 1.959964))
    assert (found.n, found.ps) == (90, ())
    assert compare([a], [b], "r'", 1, ("A", "B")) is None
    unknown = evidence("B", 0, [1], r=Estimate(math.nan, math.nan, math.nan, 0))
    assert compare([a], [unknown], "r", 1, ("A", "B")) is None


def test_a_lead_that_should_be_visible_is_found_in_four_of_five_cases_and_none_is_seldom_found() -> None:
    rng, n, seeds = np.random.default_rng(0), 2000, 2
    lead = visible(n, seeds, 0.1) / 100
    found = {0.0: 0, lead: 0}
    for true in found:
        for _ in range(200):
            both = rng.random(n) < 0.5
            rows = [draws(rng, both, true, 0.1) for _ in range(seeds)]
            runs = [[evidence(m, s, row[i]) for s, row in enumerate(rows)] for i, m in enumerate("AB")]
            found[true] += compare(*runs, "PGD", 100, ("A", "B")).low > 0
    assert found[0.0] <= 12  # 2.5 % expected
    assert 110 <= found[lead] <= 185  # 80 % expected, less where seeds happen to differ


@pytest.mark.parametrize("deviation", [0.02, 0.2])
def test_intervals_cover_the_true_lead_also_where_two_seeds_differ(deviation: float) -> None:
    rng, n, covered, simple = np.random.default_rng(1), 300, 0, 0
    for _ in range(400):
        shares = 0.5 + deviation * rng.normal(size=(3, 2)).clip(-2.4, 2.4)  # of three methods, at two seeds
        runs = [[evidence(m, s, rng.random(n) < shares[i, s]) for s in range(2)] for i, m in enumerate("ABC")]
        found = compare(runs[0], runs[1], "PGD", 100, ("A", "B"), runs[2:])
        covered += found.low <= 0 <= found.high
        simple += abs(found.lead) <= 1.96 * np.std(found.each, ddof=1) / math.sqrt(2)
    assert covered >= 0.92 * 400  # 95 %, or a little less where samples and seeds contribute alike
    assert simple <= 0.8 * 400  # what two seeds seem to say without Student's t


def run_of(lead: float, seeds: int = 2, n: int = 2000) -> list[Evidence]:
    """Models with nearly this lead at every seed: one of them alone is right on 5 % of the samples."""
    first = int(n * (0.05 + lead) / 2)
    a, b = np.zeros(n, bool), np.zeros(n, bool)
    a[:first] = b[first : int(0.05 * n)] = True
    return [evidence(m, s, mask) for s in range(seeds) for m, mask in (("A", a), ("B", b))]


@pytest.mark.parametrize(
    ("lead", "seeds", "least", "verdict"),
    [
        (0.03, 2, 0.5, "holds"),
        (-0.03, 2, 0.5, "does not hold"),
        (0.0, 2, 0.5, "not decided"),
        (0.0, 2, 5.0, "does not hold"),  # the interval is all below the least lead that counts
        (0.03, 2, 5.0, "does not hold"),
        (0.03, 1, 0.5, "not decided"),  # one seed says little of another
        (-0.03, 1, 0.5, "not decided"),
        (-0.03, 2, 0.0, "does not hold"),
    ],
)
def test_verdict_by_the_criterion(lead: float, seeds: int, least: float, verdict: str) -> None:
    asked = claim(least=least)
    found = outcome(asked, asked.answers[0], run_of(lead, seeds))
    assert found.verdict == verdict


def test_what_is_to_do_depends_on_what_is_known() -> None:
    def to_do(runs: list[Evidence], pairs: list[tuple[str, str]]) -> tuple[str, str]:
        recipe = "mnist-mlp-narrow-medium"
        asked = claim(answers=[Answer(recipe=recipe, measures=("PGD",))], pairs=pairs)
        named = [replace(e, recipe=recipe) for e in runs]
        return outcome(asked, asked.answers[0], named).to_do

    command, one = "holdfast run mnist-mlp-narrow-medium", budget.hours("mnist-mlp-narrow-medium", 1)
    assert to_do(run_of(0.03), [("A", "B")]) == ("", "")
    assert to_do([], [("A", "B")]) == (command, f"{2 * one:.1f}")
    assert to_do(run_of(0.03, seeds=1), [("A", "B")]) == (command, f"{one:.1f}")
    assert to_do(run_of(0.03), [("A", "B"), ("A", "C")]) == (command, f"{2 * one:.1f}")
    more, hours = to_do(run_of(0.0), [("A", "B")])  # the least lead, 0.5 points, takes more seeds
    assert more == f"{command} --set 'seeds={list(range(16))}'"
    assert hours == f"{14 * one:.1f}"


def test_the_worst_case_is_known_only_under_all_attacks() -> None:
    one = evidence("A", 0, [1, 0])
    assert one.reading("worst case").tolist() == [True, False]
    assert replace(one, complete=False).reading("worst case") is None


def test_better_may_be_lower() -> None:
    asked = claim(better="lower")
    assert outcome(asked, asked.answers[0], run_of(-0.03)).verdict == "holds"


def test_seeds_that_disagree_leave_a_claim_open() -> None:
    runs = run_of(0.04, seeds=1) + [Evidence("r", e.method, 1, e.records) for e in run_of(-0.004, seeds=1)]
    asked = claim()
    found = outcome(asked, asked.answers[0], runs)
    assert found.verdict == "not decided"
    assert found.comparisons[0].error > abs(np.diff(found.comparisons[0].each)[0]) / 4


def test_all_pairs_must_hold_and_one_refutes() -> None:
    good = run_of(0.03)
    asked = claim(pairs=[("A", "B"), ("A", "C")])
    assert outcome(asked, asked.answers[0], good).verdict == "not decided"
    assert outcome(asked, asked.answers[0], good).missing == [("A", "C", "PGD")]
    worse = [Evidence("r", "C", e.seed, e.records) for e in run_of(-0.03) if e.method == "B"]
    assert outcome(asked, asked.answers[0], good + worse).verdict == "not decided"  # C differs from A nowhere
    best = [evidence("C", s, np.ones(2000)) for s in range(2)]
    assert outcome(asked, asked.answers[0], good + best).verdict == "does not hold"


def test_several_comparisons_are_refuted_at_a_stricter_level() -> None:
    one = Comparison(first="A", second="B", measure="m", seeds=(0, 1), n=9, each=(-1.0, -1.0), error=0.5, values=(0, 0))
    assert one.standing(0.0, 2, 1) == "fails"  # 2 standard errors
    assert one.standing(0.0, 2, 8) == "open"


def test_the_recipe_that_answers_in_full_counts_first() -> None:
    answers = [Answer(recipe=name, measures=("PGD",)) for name in ("long", "half", "r")]
    asked = claim(answers=answers, pairs=[("A", "B")])
    half = [Evidence("half", e.method, e.seed, e.records) for e in run_of(0.03)]
    assert [o.answer.recipe for o in outcomes(asked, [*half, *run_of(0.03)])] == ["half", "r", "long"]
    two = claim(answers=answers, pairs=[("A", "B"), ("A", "C")])
    full = [*run_of(0.03), *(Evidence("r", "C", e.seed, e.records) for e in run_of(0.03) if e.method == "B")]
    assert [o.answer.recipe for o in outcomes(two, [*half, *full])] == ["r", "half", "long"]
    assert {o.verdict for o in outcomes(asked, [])} == {"no run"}


def test_seeds_that_would_decide_shrink_the_visible_lead_to_the_published_one() -> None:
    one = Comparison(first="A", second="B", measure="m", seeds=(0, 1), n=9, each=(0.1, 0.1), error=0.4, values=(0, 0))
    lead = one.visible / 2
    assert one.seeds_for(lead) == 8  # half the error takes four times the seeds
    assert one.seeds_for(0.0) == 0


def test_every_claim_can_be_answered_by_recipes_of_the_library() -> None:
    assert len({one.id for one in claims()}) == len(claims())
    analyzed = ("r at", "r' at", "50-NN at", "AUC at", "curvature")
    for one in claims():
        for answer in one.answers:
            recipe = schema.load(answer.recipe)
            assert {answer.names.get(name, name) for name in one.methods} <= recipe.methods.keys(), one.id
            for measure in answer.measures:
                assert measure in recipe.attacks or measure == "worst case" or measure.startswith(analyzed), one.id


def test_published_figures_belong_to_claims_and_show_what_they_claim() -> None:
    known = {(one.id, measure, name) for one in claims() for measure in one.measures for name in one.methods}
    assert {(one.claim, one.measure, one.name) for one in figures()} <= known
    for one in claims():
        for measure in one.measures:
            values = {name: figure.value for name, figure in published(one, measure).items()}
            leads = [values[a] - values[b] for a, b in one.pairs if a in values and b in values]
            sign = 1 if one.better == "higher" else -1
            assert all(0 < one.least <= sign * lead / 2 + 1e-9 for lead in leads), one.id
    without = {one.id for one in claims()} - {one.claim for one in figures()}
    assert without == {"convnet-worst", "mlp-worst", "detection-aware", "landscape", "training-in-train-mode"}


def test_bad_claims_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one pair"):
        claim(pairs=[])
    with pytest.raises(ValueError, match="r answers with PGD; name one for each"):
        claim(measures=["PGD", "FGSM"])
    with pytest.raises(ValueError, match="Extra inputs"):
        claim(weight=1)


def test_medium_recipes_train_in_a_night_on_two_cores() -> None:
    timed = budget.steps()["recipes"]
    for name in (name for name in timed if name.endswith("-medium")):
        recipe = schema.load(name)
        steps = {
            method: timed[name]["training samples"] // e.train.batch * e.train.epochs
            for method, e in recipe.methods.items()
        }
        seconds = sum(timed[name]["seconds"][method] * steps[method] for method in steps)
        assert budget.hours(name, 1) == pytest.approx(seconds / 3600)
        assert budget.hours(name, len(recipe.seeds)) < 20  # ten hours of two cores
    assert budget.hours("tiny-imagenet-resnet50", 1) is None
    assert budget.hours_left("tiny-imagenet-resnet50", 1, 0) == "not timed"
    assert budget.command("mnist-mlp-medium", 1) == "holdfast run mnist-mlp-medium"
    assert budget.command("mnist-mlp-medium", 3) == "holdfast run mnist-mlp-medium --set 'seeds=[0, 1, 2]'"


def test_page_and_markdown_name_every_claim_with_its_verdict() -> None:
    recipe = "mnist-mlp-narrow-medium"
    runs = [
        Evidence(recipe, {"A": "AT", "B": "AT + batch statistics"}[e.method], e.seed, e.records) for e in run_of(0.03)
    ]
    named = [
        one.model_copy(
            update={
                "answers": tuple(a.model_copy(update={"measures": ("PGD",) * len(a.measures)}) for a in one.answers)
            }
        )
        for one in claims()
    ]
    page = ledger_page([outcomes(one, runs) for one in named], ["a <b> was left out."])
    text, html = markdown(page), render(page)
    for one in claims():
        verdict = "holds" if one.id == "training-in-train-mode" else "no run"
        assert f"## {one.id}: {verdict}\n" in text
        assert f'id="{one.id}"' in html
    assert (
        f"Of {len(claims())} claims 1 hold, 0 do not hold, 0 are not decided, and {len(claims()) - 1} have no run yet"
        in text
    )
    assert "a &lt;b&gt; was left out" in html
    assert "holdfast run mnist-mlp-narrow-medium" in text
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert all(a != b for a, b in pairwise(headings))
