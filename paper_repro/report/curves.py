"""Curves of a record as small SVG drawings."""

import math
from collections.abc import Mapping, Sequence

from paper_repro.report.markup import Markup, tag
from paper_repro.report.shell import number

WIDTH, HEIGHT = 320, 130
LEFT, RIGHT, TOP, BOTTOM = 8, 8, 10, 18


def curve(name: str, points: Mapping[str, Sequence[float]]) -> Markup:
    """Return one curve with its first and last step and its range; nothing where it has no finite point."""
    pairs = [
        (float(step), float(value))
        for step, value in zip(points.get("step", ()), points.get("value", ()), strict=False)
        if math.isfinite(step) and math.isfinite(value)
    ]
    if not pairs:
        return Markup()
    steps, values = [step for step, _ in pairs], [value for _, value in pairs]
    places = [
        (
            _place(step, min(steps), max(steps), LEFT, WIDTH - RIGHT),
            _place(value, min(values), max(values), HEIGHT - BOTTOM, TOP),
        )
        for step, value in pairs
    ]
    line = tag("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in places))
    dots = [
        tag("circle", tag("title", f"step {number(step)}: {value:.6g}"), cx=f"{x:.1f}", cy=f"{y:.1f}", r=2)
        for (x, y), (step, value) in zip(places, pairs, strict=True)
    ]
    base = tag("path", d=f"M{LEFT} {HEIGHT - BOTTOM}H{WIDTH - RIGHT}", class_="base")
    texts = [
        tag("text", f"step {number(steps[0])}", x=LEFT, y=HEIGHT - 5),
        tag("text", number(steps[-1]), x=WIDTH - RIGHT, y=HEIGHT - 5, text_anchor="end") if len(pairs) > 1 else None,
    ]
    drawn = tag(
        "svg",
        base,
        line,
        dots,
        texts,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=f"{name}: from {values[0]:.6g} to {values[-1]:.6g}",
    )
    told = f"{values[0]:.4g} to {values[-1]:.4g}; lowest {min(values):.4g}, highest {max(values):.4g}"
    return tag("figure", tag("figcaption", tag("b", name), " ", told), drawn, class_="curve")


def _place(value: float, low: float, high: float, start: float, end: float) -> float:
    """Return where a value lies between two ends; in the middle where there is no range."""
    share = 0.5 if high == low else (value - low) / (high - low)
    return start + share * (end - start)
