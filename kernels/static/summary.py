"""Compiled kernels as rows of text: one for each launch, with the numbers of all GPUs."""

from collections.abc import Iterable
from typing import Any

HEADERS = [
    *("kernel", "model", "size", "tile", "registers", "spilled", "shared", "blocks", "waves", "bytes", "products"),
    *("padding", "operations", "at least", "bound by"),
]


def rows(programs: Iterable[dict[str, Any]]) -> list[list[str]]:
    """Return a row for each launch, its texts in the order of ``HEADERS``.

    Args:
        programs: as ``scripts/bench.py kernels_static`` writes them, one for each launch and GPU.
    """
    launches: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for program in programs:
        launches.setdefault((program["kernel"], program["model"], program["size"]), []).append(program)
    return [_row(place, found) for place, found in launches.items()]


def _row(place: tuple[str, ...], programs: list[dict[str, Any]]) -> list[str]:
    first = programs[0]
    constants = [f"{name} {value}" for name, value in first["tile"].items()]
    return [
        *place,
        ", ".join([*constants, f"{first['warps']} warps", f"{first['stages']} stages"]),
        _each(programs, "registers"),
        _each(programs, "spilled"),
        _each(programs, "shared", 1 / 1024),
        _each(programs, "blocks"),
        _each(programs, "waves"),
        _each(programs, "bytes_each"),
        f"{first['products_each']:.0f}" if first["products_each"] else "",
        f"{first['padding']:.2f}" if first["padding"] else "",
        _each(programs, "operations_each"),
        _joined(f"{max(program['microseconds'].values()):.3g}" for program in programs),
        _joined(program["bound"] for program in programs),
    ]


def missed(programs: list[dict[str, Any]]) -> str:
    """Say which compiled kernels miss the goals: nothing spilled, and two blocks or more of element-wise ones."""
    spilling = [program for program in programs if program["spilled"]]
    alone = [program for program in programs if program["elementwise"] and program["blocks"] < 2]
    missed = [f"{program['kernel']} ({program['model']}, {program['gpu']})" for program in spilling + alone]
    return f"All {len(programs)} programs reach them." if not missed else f"Missed by {', '.join(missed)}."


def _each(programs: list[dict[str, Any]], name: str, factor: float = 1.0) -> str:
    """Write a number of all GPUs, once where it is the same."""
    return _joined(_short(program[name] * factor) for program in programs)


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def _joined(words: Iterable[str]) -> str:
    return " / ".join(dict.fromkeys(words))
