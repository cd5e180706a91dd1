"""One palette: no drawing code names a colour itself, and all colours can be read and told apart."""

import ast
import itertools
import math
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from paper_repro.artifacts import catalogue, figures, palette

ROOT = Path(__file__).parents[2]
DRAWING = [
    path
    for folder in ("paper_repro/papers", "paper_repro/artifacts", "paper_repro/probes", "scripts")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path.name != "palette.py"
]
KEYWORDS = re.compile(r"c|cmap|colors?|\w*(facecolor|edgecolor|ecolor)s?|fc|ec|mfc|mec")
HEXADECIMAL = re.compile(r"#([0-9A-Fa-f]{3}|[0-9A-Fa-f]{6}|[0-9A-Fa-f]{8})")
NO_COLOR = ("none", "inherit")
CONTRAST, APART = 3.0, 12.0
BLINDNESS = {
    "none": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritan": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
"""What the eye makes of linear red, green and blue: Machado, Oliveira and Fernandes, 2009, severity 1."""
TO_XYZ = ((0.4124564, 0.3575761, 0.1804375), (0.2126729, 0.7151522, 0.0721750), (0.0193339, 0.1191920, 0.9503041))
WHITE = (0.95047, 1.0, 1.08883)


def named_colors(source: str) -> Iterator[str]:
    """Yield what a source says of colours in its own words: hexadecimal numbers, and words under a colour's keyword."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and HEXADECIMAL.fullmatch(node.value):
            yield node.value
        pairs: list[tuple[object, ast.expr]] = []
        if isinstance(node, ast.keyword):
            pairs = [(node.arg, node.value)]
        elif isinstance(node, ast.Dict):
            keys = (key.value if isinstance(key, ast.Constant) else None for key in node.keys)
            pairs = list(zip(keys, node.values, strict=True))
        yield from (
            value.value
            for name, value in pairs
            if isinstance(name, str) and KEYWORDS.fullmatch(name) and isinstance(value, ast.Constant)
            if isinstance(value.value, str) and value.value not in NO_COLOR
        )
        mapped = isinstance(node, ast.Subscript) and ast.unparse(node.value) == "colormaps"
        if mapped and isinstance(node.slice, ast.Constant):
            yield str(node.slice.value)


@pytest.mark.parametrize("path", DRAWING, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_drawing_code_names_a_colour_itself(path: Path) -> None:
    assert not list(named_colors(path.read_text())), "take it from paper_repro/artifacts/palette.py"


def test_the_search_for_colours_finds_them() -> None:
    source = """
axes.plot(x, y, color="black", markerfacecolor="none")
style = {"edgecolor": "C0", "label": "red"}
shade = "#A1B2C3"
axes.imshow(z, cmap="jet")
f = colormaps["turbo"]
axes.plot(x, color=palette.INK)
"""
    assert sorted(named_colors(source)) == ["#A1B2C3", "C0", "black", "jet", "turbo"]


def linear(color: str) -> list[float]:
    values = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in values]


def luminance(color: str) -> float:
    return sum(weight * value for weight, value in zip(TO_XYZ[1], linear(color), strict=True))


def times(matrix: tuple[tuple[float, ...], ...], vector: list[float]) -> list[float]:
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]


def seen(color: str, eye: str) -> tuple[float, float, float]:
    """Return lightness, a and b of CIE 1976 as an eye sees a colour."""
    visible = [min(1.0, max(0.0, value)) for value in times(BLINDNESS[eye], linear(color))]
    scaled = [value / white for value, white in zip(times(TO_XYZ, visible), WHITE, strict=True)]
    x, y, z = (value ** (1 / 3) if value > 0.008856 else 7.787 * value + 16 / 116 for value in scaled)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def test_every_colour_stands_out_from_the_white_ground() -> None:
    colors = {color for models in palette.MODELS.values() for color in models.values()}
    for color in {*colors, *palette.SERIES, *palette.RUNS, palette.FLOOR, palette.PAPER, palette.RULE, palette.SOFT}:
        contrast = (luminance(palette.GROUND) + 0.05) / (luminance(color) + 0.05)
        assert contrast >= CONTRAST, f"{color} has a contrast of {contrast:.2f}"


COLORS_SIDE_BY_SIDE = {
    **{paper: sorted(set(models.values())) for paper, models in palette.MODELS.items()},
    "runs of a sweep": [palette.BLUE, *palette.RUNS],
}


@pytest.mark.parametrize("colors", COLORS_SIDE_BY_SIDE.values(), ids=COLORS_SIDE_BY_SIDE)
def test_the_models_of_a_paper_can_be_told_apart_by_colour_blind_readers(colors: list[str]) -> None:
    for one, other in itertools.combinations(colors, 2):
        for eye in BLINDNESS:
            distance = math.dist(seen(one, eye), seen(other, eye))
            assert distance >= APART, f"{one} and {other} are {distance:.1f} apart for {eye}"


@pytest.mark.parametrize("paper", palette.MODELS)
def test_models_share_a_colour_where_they_are_named_as_settings_of_one_and_only_there(paper: str) -> None:
    models, settings = palette.MODELS[paper], palette.SETTINGS.get(paper, ())
    for one, other in itertools.combinations(models, 2):
        together = any({one, other} <= set(names) for names in settings)
        assert (models[one] == models[other]) == together, f"{one} and {other}"
    assert {name for names in settings for name in names} <= set(models)


def test_a_pair_that_a_colour_blind_reader_confuses_is_found() -> None:
    assert math.dist(seen("#D55E00", "none"), seen("#B0850A", "none")) > 2 * APART
    assert math.dist(seen("#D55E00", "deutan"), seen("#B0850A", "deutan")) < APART


def test_every_model_of_a_figure_has_a_colour() -> None:
    looked = 0
    for artifact in map(catalogue.load, catalogue.find()):
        if artifact.figure is None and not any(has_figure(companion) for companion in artifact.companions()):
            continue
        for axis in ("model", "method"):
            for value in artifact.axes[axis].values if axis in artifact.axes else ():
                assert HEXADECIMAL.fullmatch(palette.model(artifact.id, value))
                looked += 1
    assert looked > 100


def has_figure(companion: ModuleType) -> bool:
    own = [value for value in vars(companion).values() if isinstance(value, type) and issubclass(value, figures.Figure)]
    found = [value for value in own if value.__module__ == companion.__name__]
    assert all(value.marks for value in found), f"{companion.__name__}: a figure says what its marks are"
    return bool(found)


def test_a_model_without_a_colour_is_named_with_the_place_to_add_it() -> None:
    with pytest.raises(KeyError, match=r"ngpt/fig1: model 'ngtp' has no colour; add it to MODELS\['ngpt'\] in paper_r"):
        palette.model("ngpt/fig1", "ngtp")
