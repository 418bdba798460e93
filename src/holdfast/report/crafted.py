"""How adversarial examples were crafted and judged, in one sentence."""

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.records.records import Records
from holdfast.report.elements.format import listed


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
