"""The frontier of triage as a small picture: gradients per survivor against how far it is above AutoAttack."""

from collections.abc import Sequence
from math import log10
from typing import NamedTuple

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 320, 70, 20, 40, 50


class Step(NamedTuple):
    """Triage with a budget of gradients: its name, gradients per survivor, and points above AutoAttack."""

    name: str
    gradients: float
    above: float


def svg(steps: Sequence[Step], of_autoattack: float) -> str:
    """The frontier, cheapest first, with the last point, which is the schedule as chosen, marked."""
    low, high = min(0.0, *(step.above for step in steps)), max(0.5, *(step.above for step in steps))
    first, last = log10(min(step.gradients for step in steps)), log10(of_autoattack)

    def place(gradients: float, above: float) -> tuple[float, float]:
        across = LEFT + (WIDTH - LEFT - RIGHT) * (log10(gradients) - first) / (last - first)
        return across, TOP + (HEIGHT - TOP - BOTTOM) * (high - above) / (high - low)

    places = [place(step.gradients, step.above) for step in steps]
    zero = place(1, 0)[1]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(LEFT, 20, "Triage: robust accuracy above that of AutoAttack, in points, mean over the models"),
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{zero:.1f}" y2="{zero:.1f}" stroke="#888"/>',
        _text(LEFT, HEIGHT - 12, "gradients per sample that is never fooled (logarithmic)"),
        _text(10, zero + 4, "as strong"),
        f'<polyline fill="none" stroke="#06c" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}"/>',
    ]
    for step, (x, y) in zip(steps, places, strict=True):
        chosen = step is steps[-1]
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{6 if chosen else 3}" fill="{"#c30" if chosen else "#06c"}"/>'
        )
        parts.append(_text(x - 8, y - 10, f"{step.gradients:.0f}{' (chosen)' if chosen else ''}"))
    end = place(of_autoattack, 0)
    parts.append(f'<circle cx="{end[0]:.1f}" cy="{end[1]:.1f}" r="4" fill="#444"/>')
    parts.append(_text(end[0] - 90, end[1] - 10, f"AutoAttack {of_autoattack:.0f}"))
    return "\n".join([*parts, "</svg>", ""])


def _text(x: float, y: float, words: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}">{words}</text>'
