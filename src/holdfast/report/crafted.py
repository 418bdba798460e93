"""How adversarial examples were crafted and judged, in sentences."""

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.records.records import Records
from holdfast.report.elements.format import listed, percent


def crafted(found: Mapping[str, Records]) -> Iterator[str]:
    """A sentence for all models by name, or one for each group of models that were attacked alike."""
    names: dict[str, list[str]] = {}
    for name, records in found.items():
        names.setdefault(_sentence(records), []).append(name)
    for sentence, those in names.items():
        yield sentence if len(names) == 1 else f"{listed(those)}: {sentence}"


def _sentence(records: Records) -> str:
    how: Mapping[str, Any] | None = records.facts.get("crafting")
    if how is None:
        return "Crafted by queries to the model, judged in float32."
    if not any("name" in attack.settings for attack in records.attacks.values()):  # none is one of holdfast's
        return "Judged in float32 on the model itself."
    form = "the fused form of the model" if how["folded"] else f"the model itself ({how['reason']})"
    return f"Crafted in {how['arithmetic']} on {form}, judged in float32 on the model itself."


def unanswered(found: Mapping[str, Records]) -> Iterator[str]:
    """How often each model gives no answer without an attack, and what that counts as: it abstains, or its outputs are
    not finite.
    """
    for name, records in found.items():
        if missing := records.facts.get("clean", {}).get("not_finite"):
            yield (
                f"{name} gives NaN or infinite outputs for {missing} of {len(records)} samples without attack, which "
                "count as misclassified."
            )
        if records.abstained is not None and len(records):
            rejected = percent(float(records.abstained.mean()))
            bare = percent(float((records.columns["label"] == records.columns["y"]).mean()))
            yield (
                f"{name} abstains on {rejected} % of the samples without attack, which counts as an error (without "
                f"rejection it would be {bare} % correct); abstaining under attack counts as correct. Attack it with "
                "PGD(loss=Evasion(model.detector.score), keep='worst'): other attacks do not know when it abstains."
            )
