"""Which cells are run together."""

from collections.abc import Sequence
from dataclasses import dataclass

from paper_repro.base import configs, identity
from paper_repro.cells.planned import PlannedCell


@dataclass(frozen=True, eq=False)
class Job:
    """Cells that one worker runs together, in the order of the plan."""

    cells: tuple[PlannedCell, ...]

    @property
    def label(self) -> str:
        """What the cells have in common: values of axes, and the seeds."""
        shared = [pair for pair in self.cells[0].key if all(pair in cell.key for cell in self.cells)]
        seeds = sorted({cell.seed for cell in self.cells})
        last = f"-{seeds[-1]}" if len(seeds) > 1 and seeds[-1] - seeds[0] == len(seeds) - 1 else ""
        numbers = f"{seeds[0]}{last}" if last else ",".join(map(str, seeds))
        return " ".join([*(value for _, value in shared), f"seed{'s' if len(seeds) > 1 else ''} {numbers}"])


def jobs(cells: Sequence[PlannedCell]) -> list[Job]:
    """Group cells that differ only in what their config's ``machine.stack.over`` allows, at most ``most`` together.

    The grouping depends on the plan alone, not on what is already done, so that a cut-off job is found again.
    """
    groups: dict[str, list[PlannedCell]] = {}
    for cell in cells:
        stack = cell.config.get(identity.MACHINE, {}).get("stack")
        shape = cell.id
        if stack:
            shape = identity.fingerprint(configs.without(cell.config, [identity.MACHINE, *stack["over"]]))
        groups.setdefault(shape, []).append(cell)
    result = []
    for members in groups.values():
        stack = members[0].config.get(identity.MACHINE, {}).get("stack") or {"most": 1}
        most = int(stack["most"])
        # Even shares: 20 cells at most 12 are 10 and 10, so that two workers end together.
        count = -(-len(members) // most)
        size = -(-len(members) // count)
        result += [Job(tuple(members[start : start + size])) for start in range(0, len(members), size)]
    return result
