"""Colours and drawings that figures share: lines with seeds, bars, strips of images, heat maps.

A plain Transformer is ink, a model that descends an energy is blue, and variants have the colours between.  Settings of
one model share its colour and differ by line or marker.  No other file names a colour.
"""

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paper_repro.tables import stats
from paper_repro.tables.view import View

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

TICK_CHARACTER = 6.0  # points of a character of a tick's number
COARSE, FINE, FEWEST_TICKS = (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 5.0, 7.0), 3
GROUND = "#FFFFFF"
INK, BLUE, VERMILION, GREEN = "#222222", "#0065A8", "#D55E00", "#009E73"
PURPLE, VIOLET, SKY, GREY = "#A02C6E", "#7E3FE0", "#3D97D6", "#7F7F7F"
RULE = "#8C8C8C"  # lines that mark a place: zero, a threshold, the setting of training
BASELINE = "#5F5F5F"
PAPER = "#555555"  # a printed number that belongs to no model of the figure
SOFT = "#555555"  # text below a figure
SERIES = (INK, VERMILION, BLUE, GREEN, PURPLE, SKY, GREY)  # what is drawn side by side and is no model
RUNS = (VERMILION, GREEN, PURPLE, VIOLET)  # the runs of a sweep, beside the run that has the colour of the model
ORDERED, SIGNED, PICTURE = "viridis", "PRGn_r", "gray"  # colour maps

MODELS = {
    "cem": {
        **dict.fromkeys(("llama", "plain"), INK),
        **dict.fromkeys(("attention", "attention_plain", "attention_t2", "none", "shared", "per_head"), VERMILION),
        **dict.fromkeys(("mlp", "mlp_t2"), GREEN),
        **dict.fromkeys(("full", "t1", "t2", "t4", "t8"), BLUE),
        "mlp_matched": PURPLE,
        "gated": VIOLET,
    },
    "cet": {"ep": BLUE, "tbpte": VERMILION},
    "ebt": {
        **dict.fromkeys(("transformer", "feed_forward", "dit"), INK),
        **dict.fromkeys(("ebt", "s1"), BLUE),
        "s2": PURPLE,
        "times": GREY,
        "recurrent": VERMILION,
        "rnn": VIOLET,
        "ebt_free": SKY,
    },
    "ngpt": {"gpt": INK, "gpt_qk": VERMILION, "ngpt": BLUE},
    "nrgpt": {"gpt": INK, "rgpt_parallel": VERMILION, "ff1": BLUE, "ff2w": GREEN},
}
"""By paper, and by the value of the axis of models."""


def model(artifact: str, name: str) -> str:
    """Return the colour of a model of an artifact; grey of one that is not listed."""
    return MODELS.get(artifact.partition("/")[0], {}).get(name, GREY)


def seeds_and_mean(
    axes: "Axes",
    points: Iterable[tuple[float, float]],
    color: str,
    label: str | None = None,
    line: str = "-",
    marker: str = "o",
    hollow: bool = False,
) -> None:
    """Draw every (place, value) as a faint dot, and a line of a style through the means, whose marks may be hollow."""
    groups: dict[float, list[float]] = {}
    for place, value in points:
        groups.setdefault(place, []).append(value)
    if not groups:
        return
    each = [(place, value) for place, values in groups.items() for value in values]
    x, y = zip(*each, strict=True)
    axes.scatter(x, y, s=8, color=color, alpha=0.35, linewidths=0)
    places = sorted(groups)
    means = [stats.mean(groups[place]) for place in places]
    style: Any = {"markersize": 4.5 if hollow else 3.5, "linewidth": 1.2, "linestyle": line or "none"}
    style |= {"markerfacecolor": GROUND} if hollow else {}
    axes.plot(places, means, color=color, marker=marker, label=label, **style)


def models(axes: "Axes", view: View, rows: Iterable[Mapping[str, Any]], x: str, y: str) -> None:
    """Draw columns of the rows of each model as ``seeds_and_mean`` does."""
    found = list(rows)
    for name, spec in view.artifact.axes["model"].values.items():
        points = [(row[x], row[y]) for row in found if row["model"] == name]
        seeds_and_mean(axes, points, model(view.artifact.id, name), spec.label)


def log_ticks(axis: "Axis") -> None:
    """Put ticks at 1, 2 and 5 times the powers of ten, and between these where few lie in the range; written 2k, 5M."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    ends = sorted(float(end) for end in axis.get_view_interval())
    powers = range(math.floor(math.log10(ends[0])), math.ceil(math.log10(ends[1])) + 1) if ends[0] > 0 else ()
    shown = [factor for power in powers for factor in COARSE if ends[0] <= factor * 10.0**power <= ends[1]]
    axis.set_major_locator(LogLocator(subs=COARSE if len(shown) >= FEWEST_TICKS else FINE))
    axis.set_major_formatter(EngFormatter(sep=""))
    axis.set_minor_formatter(NullFormatter())


def ticks_at(axes: "Axes", settings: Iterable[float]) -> None:
    """Put a tick at each setting of a logarithmic horizontal axis, with its number where that touches no other."""
    places = sorted({*settings})
    low, high = sorted(math.log(end) for end in axes.get_xlim())
    width = 72.0 * float(axes.get_window_extent().width) / axes.figure.dpi
    labels, free = [], -math.inf
    for place in places:
        middle, half = width * (math.log(place) - low) / (high - low), TICK_CHARACTER * len(f"{place:g}") / 2
        labels.append(f"{place:g}" if middle - half > free else "")
        free = middle + half if labels[-1] else free
    axes.set_xticks(places, labels=labels)
    axes.set_xticks([], minor=True)


def pixels(content: bytes | None) -> Any:
    """Read the pixels of a strip of B images, (H, B H) or (H, B H, 4), from a PNG; None for none."""
    from matplotlib.image import imread

    return None if content is None else imread(io.BytesIO(content), format="png")


def draw_strip(axes: "Axes", pixels: Any, label: str, errors: Sequence[float] | None = None) -> None:
    """Draw B images side by side, (H, B H) or (H, B H, 4), behind a label and above their errors."""
    height, width = pixels.shape[:2]
    axes.imshow(pixels, cmap=PICTURE, vmin=0, vmax=1, interpolation="nearest", aspect="equal")
    axes.set_ylabel(label, rotation=0, ha="right", va="center")
    for left in range(height, width, height):
        axes.axvline(left - 0.5, color=GROUND, linewidth=1.5)
    places = [height * (index + 0.5) for index in range(len(errors or ()))]
    axes.set_xticks(places, [f"{error:.3f}" for error in errors or ()])
    axes.set_yticks([])
    axes.tick_params(length=0, labelsize=6)
    axes.grid(False)
    axes.spines[:].set_visible(False)


Bars = tuple[str, str, bool, Sequence[Sequence[float]]]
"""Label and colour of bars, whether they are filled (else hatched), and for each group one value a seed."""


def bars(axes: "Axes", groups: Sequence[str], kinds: Sequence[Bars], base: float = 0.0) -> None:
    """Draw bars of means side by side in each group, from ``base`` on, with a dot for each seed."""
    width = 0.8 / len(kinds)
    for index, (name, color, full, groups_of) in enumerate(kinds):
        style: Any = {"color": color if full else GROUND, "hatch": "" if full else "////"}
        dots: Any = {"color": GROUND, "markeredgecolor": color, "markersize": 4, "clip_on": False}
        label: str | None = name
        for group, values in enumerate(groups_of):
            if values:
                x = group + (index - (len(kinds) - 1) / 2) * width
                height = stats.mean(values) - base
                axes.bar(x, height, 0.9 * width, bottom=base, edgecolor=color, label=label, **style)
                axes.plot([x] * len(values), values, "o", **dots)
                label = None
    axes.axhline(base, color=RULE, linewidth=0.8)
    axes.set_xticks(range(len(groups)), groups)
    axes.grid(visible=False, axis="x")


def heat(axes: "Axes", values: Any, xlabels: Sequence[str], ylabels: Sequence[str], label: str) -> Any:
    """Draw a heat map of (Y, X) values with a colour bar, and return the image."""
    image = axes.imshow(values, cmap=ORDERED, aspect="auto", interpolation="nearest")
    axes.set_xticks(range(len(xlabels)), xlabels)
    axes.set_yticks(range(len(ylabels)), ylabels)
    axes.grid(False)
    axes.figure.colorbar(image, ax=axes, label=label)
    return image
