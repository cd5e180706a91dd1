"""What the programs of a launch compute, counted in Triton's intermediate code (the text of its stage "ttir").

Every operation on a tile counts its entries, padding and what a mask hides included, as often as the loops around it
go; how often they go is computed from the arguments, for all programs at once.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

FLOATING = re.compile(r"arith\.(?:add|sub|mul|div|rem|neg|maximum|minimum|maxnum|minnum)f|math\.\w+")
"""Arithmetic that counts one operation an entry; comparisons, selections, conversions and integers count nothing."""
FUSED = "math.fma"
"""Arithmetic that counts two."""
_ASSIGNED = re.compile(r"(?:%(\w+)(?::\d+)? = )?\"?([a-z_]+\.[a-z_0-9]+)\"?(.*)")
_LOOP = re.compile(r"%\w+ = %(\w+) to %(\w+) step %(\w+) ")
_TILE = re.compile(r"tensor<((?:\d+x)*)(\w+|!tt\.ptr<\w+>)>")
_NUMBER = re.compile(r"(-?\d+) : i\d+$")
_PLACES = {"x": 0, "y": 1, "z": 2}


@dataclass
class Counted:
    """What all programs of a launch compute together."""

    operations: int = 0
    """Arithmetic on floating-point numbers, without products of matrices."""
    products: dict[str, int] = field(default_factory=dict)
    """FLOPs of products of matrices, two for each multiplication, by the type of their factors: bf16, tf32, fp32."""


def count(text: str, arguments: Sequence[Any], grid: tuple[int, int, int]) -> Counted:
    """Count what a kernel computes; of two branches both, unless the arguments tell which is taken.

    Args:
        text: the intermediate code.
        arguments: those that the compiled kernel has, in order; tensors among them are not looked at.
        grid: the programs.

    Raises:
        ValueError: a loop whose bounds follow from what a kernel loads or computes in a loop, or one without bounds.
    """
    lines = iter(_lines(text))
    header = next(line for line in lines if line.startswith("tt.func public"))
    names = re.findall(r"%(\w+): ", header)
    values = {name: torch.tensor(value) for name, value in zip(names, arguments, strict=True) if isinstance(value, int)}
    found = Counted()
    _Region(values, grid, found).walk(lines, torch.ones(grid, dtype=torch.int64))  # (programs in x, y, z)
    return found


def _lines(text: str) -> Iterator[str]:
    for line in text.splitlines():
        yield re.sub(r"\s*loc\((?:[^()]|\([^()]*\))*\)", "", line).strip()


class _Region:
    def __init__(self, values: dict[str, Tensor], grid: tuple[int, int, int], found: Counted) -> None:
        self.values, self.grid, self.found = values, grid, found

    def walk(self, lines: Iterator[str], times: Tensor, otherwise: Tensor | None = None) -> None:
        """Count the lines of a region that each program goes through so many ``times``, (programs in x, y, z).

        ``otherwise``: how often each program goes through what follows an "else".
        """
        blocks: dict[str, Tensor] = {}
        for line in lines:
            if line.startswith("} else") and otherwise is not None:
                times = otherwise
            elif line.startswith("}"):
                return
            elif line.startswith("^"):
                times = blocks.get(line.partition(":")[0], times)
            matched = _ASSIGNED.match(line)
            if matched is None:
                continue
            name, operation, rest = matched.groups()
            if operation == "cf.cond_br":
                blocks |= dict(zip(re.findall(r"\^\w+", rest), self._branches(rest, times), strict=True))
            elif line.endswith("{") or operation in ("tt.call", "cf.br"):
                self._enter(operation, rest, line, lines, times)
            elif operation == "tt.dot":
                self._multiplied(rest, times)
            elif FLOATING.fullmatch(operation):
                self.found.operations += (1 + (operation == FUSED)) * _entries(rest) * int(times.sum())
            elif name is not None and "tensor<" not in rest:
                self._remember(name, operation, rest)

    def _enter(self, operation: str, rest: str, line: str, lines: Iterator[str], times: Tensor) -> None:
        """Count a region that a line begins."""
        if operation == "scf.for":
            self.walk(lines, times * self._trips(rest, line))
        elif operation == "scf.if":
            self.walk(lines, *self._branches(rest, times))
        elif operation in ("tt.reduce", "tt.scan"):
            self._reduced(lines, times)
        else:
            raise ValueError(f"neither its trips nor what it calls can be counted: {line}")

    def _branches(self, rest: str, times: Tensor) -> tuple[Tensor, Tensor]:
        """Return how often each program takes the first of two branches, and the second."""
        condition = self.values.get(rest.split(maxsplit=1)[0].strip("%,"))
        return (times, times) if condition is None else (times * condition, times * (1 - condition))

    def _trips(self, rest: str, line: str) -> Tensor:
        matched = _LOOP.search(rest)
        bounds = [] if matched is None else [self.values.get(name) for name in matched.groups()]
        if not bounds or any(bound is None for bound in bounds):
            raise ValueError(f"how often this loop goes does not follow from the arguments: {line}")
        first, end, step = (bound for bound in bounds if bound is not None)
        return _rounded_up(end - first, step).clamp(min=0)  # (programs in x, y, z), or 1 where they do not differ

    def _reduced(self, lines: Iterator[str], times: Tensor) -> None:
        """Count a reduction: what it does with two entries, for each entry of its tile."""
        each = 0
        for line in lines:
            if line.startswith("})"):
                self.found.operations += each * _entries(line) * int(times.sum())
                return
            matched = _ASSIGNED.match(line)
            each += matched is not None and FLOATING.fullmatch(matched[2]) is not None
        raise ValueError("a reduction does not end")

    def _multiplied(self, rest: str, times: Tensor) -> None:
        (rows, kind), (columns, _) = _TILE.findall(rest)[:2]
        inner = columns.split("x")
        flops = 2 * _size(rows) * int(inner[-2]) * int(times.sum())
        exact = kind == "f32" and "inputPrecision = tf32" not in rest
        kind = {"f32": "fp32" if exact else "tf32", "f64": "fp64", "f16": "bf16"}.get(kind, kind)
        self.found.products[kind] = self.found.products.get(kind, 0) + flops

    def _remember(self, name: str, operation: str, rest: str) -> None:
        """Compute a whole number of each program, if it follows from the arguments."""
        place = _PLACES.get(rest.split(maxsplit=1)[0]) if rest else None
        kind = operation.removeprefix("arith.")
        compute = _COMPARISONS.get(rest.partition(",")[0].strip()) if kind == "cmpi" else _ARITHMETIC.get(kind)
        operands = [self.values.get(operand) for operand in re.findall(r"%(\w+)", rest)]
        number = _NUMBER.match(rest.strip())
        if operation == "tt.get_num_programs" and place is not None:
            self.values[name] = torch.tensor(self.grid[place])
        elif operation == "tt.get_program_id" and place is not None:
            sides = [-1 if other == place else 1 for other in range(3)]
            self.values[name] = torch.arange(self.grid[place]).view(sides)  # (programs in x, 1, 1), or as y, z
        elif operation == "arith.constant" and number is not None:
            self.values[name] = torch.tensor(int(number[1]))
        elif compute is not None and all(operand is not None for operand in operands):
            self.values[name] = compute(*operands).long()  # (programs in x, y, z), or 1 where they do not differ


def _rounded_up(count: Tensor, step: Tensor) -> Tensor:
    return -torch.div(-count, step, rounding_mode="floor")


def _cut(one: Tensor, two: Tensor) -> Tensor:
    return torch.div(one, two, rounding_mode="trunc")


def _same(one: Tensor) -> Tensor:
    return one


_ARITHMETIC: dict[str, Callable[..., Tensor]] = {
    "addi": torch.add,
    "subi": torch.sub,
    "muli": torch.mul,
    "divsi": _cut,
    "remsi": torch.fmod,
    "minsi": torch.minimum,
    "maxsi": torch.maximum,
    "extsi": _same,
    "trunci": _same,
    "index_cast": _same,
    "ceildivsi": _rounded_up,
}
"""What MLIR does with whole numbers, where loops need it."""
_COMPARISONS: dict[str, Callable[..., Tensor]] = {
    "eq": torch.eq,
    "ne": torch.ne,
    "slt": torch.lt,
    "sle": torch.le,
    "sgt": torch.gt,
    "sge": torch.ge,
}


def _entries(text: str) -> int:
    """Count the entries of the first tile that a line names; 1 for a number."""
    matched = _TILE.search(text)
    return 1 if matched is None else _size(matched[1])


def _size(sides: str) -> int:
    return math.prod(int(side) for side in sides.split("x") if side)
