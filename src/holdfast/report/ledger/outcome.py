"""The verdict on a claim by the records of one recipe, and what would decide it where they do not."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from holdfast.report.ledger.budget import command, hours_left
from holdfast.report.ledger.claims import Answer, Claim, published
from holdfast.report.ledger.comparison import Comparison, Evidence, compare

Verdict = Literal["holds", "does not hold", "not decided", "no run"]


@dataclass(frozen=True)
class Outcome:
    """What the records of one recipe say about a claim.

    ``comparisons`` are those that could be made, ``missing`` the others, by the names of methods and measure.
    """

    claim: Claim
    answer: Answer
    comparisons: Sequence[Comparison]
    missing: Sequence[tuple[str, str, str]]

    @property
    def verdict(self) -> Verdict:
        """By the criterion of the claim: a comparison that fails refutes it; it holds if every comparison does."""
        if not self.comparisons:
            return "no run"
        standings = [self.standing(one) for one in self.comparisons]
        if "fails" in standings:
            return "does not hold"
        return "holds" if set(standings) == {"holds"} and not self.missing else "not decided"

    def standing(self, one: Comparison) -> str:
        """How one of the comparisons stands."""
        return one.standing(self.claim.least, self.claim.seeds, len(self.comparisons) + len(self.missing))

    def lead(self, one: Comparison) -> float | None:
        """The published lead that a comparison is about; None if it was not published."""
        measure = dict(zip(self.answer.measures, self.claim.measures, strict=True))[one.measure]
        known = published(self.claim, measure)
        if one.first not in known or one.second not in known:
            return None
        gain = known[one.first].value - known[one.second].value
        return gain if self.claim.better == "higher" else -gain

    def expected(self, one: Comparison) -> float:
        """The lead that a further run should be able to see: the published one, else the least that counts.

        If ours is larger, a run need only see that.
        """
        lead = self.lead(one)
        return max(one.lead, lead if lead is not None and lead > 0 else self.claim.least)

    @property
    def seeds(self) -> int:
        """The seeds that would decide the claim if its leads are as expected."""
        undecided = [one for one in self.comparisons if self.standing(one) == "open"]
        return max([self.claim.seeds, *(one.seeds_for(self.expected(one)) for one in undecided)])

    @property
    def to_do(self) -> tuple[str, str]:
        """The command that would decide the claim by this recipe, and the hours of one core that training takes.

        Both are empty if it is decided.
        """
        recipe, needed, have = self.answer.recipe, self.claim.seeds, 0
        if self.verdict in ("holds", "does not hold"):
            return "", ""
        if self.comparisons and not self.missing:
            have = min(len(one.seeds) for one in self.comparisons)
            needed = max(self.seeds, have + 1)
        return command(recipe, needed), hours_left(recipe, needed, have)


def outcome(claim: Claim, answer: Answer, evidence: Iterable[Evidence]) -> Outcome:
    """Compare the pairs of a claim by every measure."""
    sign = 1 if claim.better == "higher" else -1
    of_recipe = [one for one in evidence if one.recipe == answer.recipe]
    found: list[Comparison] = []
    missing: list[tuple[str, str, str]] = []
    runs = {name: [one for one in of_recipe if one.method == answer.names.get(name, name)] for name in claim.methods}
    for pair, measure in product(claim.pairs, answer.measures):
        others = [models for name, models in runs.items() if name not in pair]
        made = compare(runs[pair[0]], runs[pair[1]], measure, sign * claim.scale, pair, others)
        if made is None:
            missing.append((*pair, measure))
        else:
            found.append(made)
    return Outcome(claim, answer, found, missing)


def outcomes(claim: Claim, evidence: Sequence[Evidence]) -> list[Outcome]:
    """What every recipe says about a claim; the one that counts is first.

    That is the first whose comparisons could all be made, else the first with any, else the first of the claim.
    """
    every = [outcome(claim, answer, evidence) for answer in claim.answers]
    return sorted(every, key=lambda one: 2 if not one.comparisons else 1 if one.missing else 0)
