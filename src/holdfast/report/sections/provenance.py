"""Which code and libraries made each result.

The facts of a run list its makers: ``facts["made"]`` those of its measurements and ``facts["training"]["made"]`` those
of its training, each as ``{"code": digest, "versions": {...}, "commit": ...}``. Records from before that have one set
of ``versions`` and a ``commit``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.report.elements.format import listed
from holdfast.report.elements.table import UNKNOWN, Table, listing
from holdfast.report.page import Section
from holdfast.report.study import Run, Study

ORDER = 90

_MACHINE = ("platform", "threads")


@dataclass(frozen=True)
class Maker:
    """The code and the versions of the libraries that computed a result."""

    code: str
    commit: str
    versions: tuple[tuple[str, str], ...]

    @staticmethod
    def read(given: Mapping[str, Any]) -> "Maker":
        """A maker as facts state it."""
        versions = tuple((name, str(version)) for name, version in given.get("versions", {}).items())
        return Maker(str(given.get("code") or ""), str(given.get("commit") or ""), versions)

    @property
    def name(self) -> str:
        """The digest of the code, else the commit."""
        return (self.code or self.commit)[:12] or UNKNOWN

    def versions_text(self, without: Sequence[str] = ()) -> str:
        return ", ".join(f"{name} {version}" for name, version in self.versions if name not in without) or UNKNOWN


def makers(run: Run) -> list[Maker]:
    """What made the measurements of a run, the newest last; empty if its facts do not say."""
    facts = run.records.facts
    given = facts.get("made") or ([facts] if "versions" in facts or "commit" in facts else [])
    return [Maker.read(one) for one in given]


def trainers(run: Run) -> list[Maker]:
    """What trained the model of a run, the newest last; empty if its facts do not say."""
    return [Maker.read(one) for one in run.records.facts.get("training", {}).get("made", [])]


def all_makers(study: Study) -> list[Maker]:
    """The distinct makers of everything on the page."""
    return list(dict.fromkeys(maker for run in study.runs for maker in (*trainers(run), *makers(run))))


def section(study: Study) -> Section | None:
    """The data, weights and makers of each run, and the versions of each maker."""
    return Section(
        id="provenance",
        title="Provenance",
        sentences=["Each result names the code that computed it: the digest of its source, or else its commit."],
        tables=[_runs(study), _makers(study)],
        warnings=_warnings(study),
    )


def _runs(study: Study) -> Table:
    words, code = ("Method", "Data"), ("Digest", "Weights", "Trained by", "Measured by")
    return listing(["Run", "Seed", *words, *code], map(_run, study.runs), words=words, code=code)


def _run(run: Run) -> list[str]:
    data, weights = run.records.facts.get("data", {}), run.records.facts.get("weights", UNKNOWN)
    digest = weights["digest"] if isinstance(weights, Mapping) else weights
    by = [", ".join(dict.fromkeys(m.name for m in found)) or UNKNOWN for found in (trainers(run), makers(run))]
    digests = [str(digest)[:12] for digest in (data.get("digest", UNKNOWN), digest)]
    return [run.title, str(run.seed), run.method, str(data.get("name", UNKNOWN)), *digests, *by]


def _makers(study: Study) -> Table:
    rows = [[maker.name, maker.commit[:12] or UNKNOWN, maker.versions_text()] for maker in all_makers(study)]
    return listing(["Code", "Commit", "Versions"], rows, "Code and libraries", words=["Versions"], code=["Commit"])


def _warnings(study: Study) -> list[str]:
    found = []
    different = {(maker.name, maker.versions_text(without=_MACHINE)) for maker in all_makers(study)}
    if len(different) > 1:
        found.append(
            f"These results were made by {len(different)} different versions of the code or its libraries; "
            "the provenance section names them for each run."
        )
    if study.code:
        found += _other_code(study, makers, "results", "made")
        found += _other_code(study, trainers, "models", "trained")
    return found


def _other_code(study: Study, by: Callable[[Run], list[Maker]], what: str, done: str) -> list[str]:
    """A warning about runs that other code than the one of the page measured or trained."""
    others = [run.label for run in study.runs if any(maker.code != study.code for maker in by(run))]
    if not others:
        return []
    who = f"All {what}" if len(others) == len(study.runs) else f"{what.capitalize()} of {listed(others)}"
    return [
        f"{who} were {done} by other code than the code that wrote this page ({study.code[:12]}); "
        f"{done} again they may differ."
    ]
