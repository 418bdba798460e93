"""The page of a study."""

from holdfast.report.opening import opening
from holdfast.report.page import Page
from holdfast.report.sections import sections
from holdfast.report.study import Study


def study_page(study: Study) -> Page:
    """The page of a study: its first screen and its sections."""
    return Page(
        name=study.name,
        title=study.title,
        opening=opening(study),
        sections=sections(study),
        facts={name: text for name, text in _facts(study).items() if text},
        footer=f"Study {study.name}. Every number on this page is computed from per-sample records.",
    )


def _facts(study: Study) -> dict[str, str]:
    data = dict.fromkeys(str(run.records.facts.get("data", {}).get("name", "")) for run in study.runs)
    norms = dict.fromkeys(certificate.partition(":")[0] for _, certificate in study.certified())
    sizes = sorted({len(run.records) for run in study.runs})
    seeds = sorted({run.seed for run in study.runs if run.trained})
    return {
        "Data": ", ".join(filter(None, data)),
        "Threat": study.threat,
        "Certified radii": ", ".join(norms),
        "Samples": " to ".join(dict.fromkeys(f"{n:,}" for n in (sizes[0], sizes[-1]))),
        "Seeds": ", ".join(map(str, seeds)),
        "Measured": study.date,
    }
