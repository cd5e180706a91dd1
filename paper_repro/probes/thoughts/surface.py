"""The energy around a prediction, along random directions and in planes, with the path of the descent that led to it.

There are two spaces to move in.  In logit space a point is y and its energy E(W softmax(y)), so every point is a
prediction.  In candidate space a point is the embedded candidate e, which the trunk reads, and its energy E(e); not
every e is W p of a distribution p.  A descent in S steps has S + 1 points; the last one is the centre.

Legend: S steps, K places whose energies are summed (one token, or the cells of a board), V vocabulary, D width,
M points, R directions, F numbers of a point: K V or K D.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paper_repro.base.identity import mix
from paper_repro.models.ebt import Energies, EnergyModel

SPACES = ("candidates", "logits")
Row = dict[str, Any]
EnergyOf = Callable[[Tensor], Tensor]
"""Energies (M,) of points (M, F)."""
MARGIN = 1.25
"""How far a curve or a plane goes, over the largest distance of the path from its end."""
CHUNK = 256
"""Points whose energies are computed at once."""


@dataclass(frozen=True)
class Surface:
    """A space with an energy, and the path of a descent in it, (S + 1, F)."""

    space: str
    energy: EnergyOf
    path: Tensor

    @property
    def centre(self) -> Tensor:
        """The prediction that the descent ended with, (F,)."""
        return self.path[-1]

    @property
    def radius(self) -> float:
        """The largest distance from the centre that is looked at."""
        farthest = (self.path - self.centre).norm(dim=-1).max()
        return MARGIN * float(farthest)

    def random_directions(self, count: int, seed: int) -> Tensor:
        """Draw directions of length 1 that are orthogonal to each other, (R, F)."""
        generator = torch.Generator().manual_seed(mix(seed, "directions", self.space))
        drawn = torch.randn((len(self.centre), count), generator=generator, dtype=torch.float64)  # (F, R)
        return torch.linalg.qr(drawn).Q.T.to(self.path)  # (R, F)

    def path_directions(self) -> Tensor:
        """Return the two directions along which the path extends most, (2, F): principal directions from its end.

        A path of one step has one; then the second one is random.
        """
        steps = (self.path[:-1] - self.centre).double()  # (S, F)
        *_, directions = torch.linalg.svd(steps, full_matrices=False)  # (S or F, F)
        first = directions[0] * (1 if float(steps[0] @ directions[0]) >= 0 else -1)
        others = torch.cat([directions[1:2], self.random_directions(1, 0).double()])  # (1 or 2, F)
        second = others[0] - (others[0] @ first) * first
        return torch.stack([first, second / second.norm()]).to(self.path)  # (2, F)

    def coordinates(self, directions: Tensor) -> Tensor:
        """Return where the path's points lie along directions (R, F), from the centre, (S + 1, R)."""
        return (self.path - self.centre) @ directions.T

    def curve(self, direction: Tensor, offsets: Tensor) -> Tensor:
        """Return the energies (M,) at offsets (M,) from the centre along a direction, (F,)."""
        return self._energies(self.centre + offsets[:, None] * direction)

    def plane(self, directions: Tensor, offsets: Tensor) -> Tensor:
        """Return the energies (M, M) at offsets (M,) along two directions, (2, F): entry i, j is at offset i along the
        first one, j along the second.
        """
        along = torch.cartesian_prod(offsets, offsets)  # (M M, 2)
        return self._energies(self.centre + along @ directions).view(len(offsets), -1)  # (M, M)

    @torch.no_grad()
    def _energies(self, points: Tensor) -> Tensor:
        return torch.cat([self.energy(part) for part in points.split(CHUNK)])


def surfaces(model: EnergyModel, energies: Energies, path: Tensor) -> list[Surface]:
    """Return the energy in each of ``SPACES`` on the last landscape.

    Args:
        energies: of the context; candidates (M, K, D).
        path: the logits after 0, 1, ..., S steps, (S + 1, K, V).
    """
    weight, landscape = model.prediction_embedding.weight, model.num_landscapes - 1
    places, words = path.shape[1:]

    def of_candidates(points: Tensor) -> Tensor:
        return energies(points.unflatten(-1, (places, -1)), landscape).sum(-1)  # (M, K D) -> (M,)

    def of_logits(points: Tensor) -> Tensor:
        candidates = torch.softmax(points.unflatten(-1, (places, words)), -1) @ weight.mT  # (M, K, D)
        return energies(candidates, landscape).sum(-1)  # (M,)

    with torch.no_grad():
        embedded = torch.softmax(path, -1) @ weight.mT  # (S + 1, K, D)
    kinds = ((of_candidates, embedded), (of_logits, path))
    return [Surface(space, of, points.flatten(1)) for space, (of, points) in zip(SPACES, kinds, strict=True)]


def rows(found: Sequence[Surface], seed: int, num_curves: int = 8, points: int = 41) -> Iterator[Row]:
    """Yield what a figure draws: for each space curves along random directions and along the path, and two planes.

    ``kind`` is "curve", "plane" or "path".  ``over`` says what the directions are: "random" or "path".  A curve has its
    number as ``line`` and one coordinate x; a plane has x and y.  Points of the path have their step as ``line``.
    """
    for surface in found:
        offsets = torch.linspace(-surface.radius, surface.radius, points).to(surface.path)  # (M,)
        random, own = surface.random_directions(num_curves, seed), surface.path_directions()
        curves = {"random": random, "path": own[:1]}
        for over, directions in curves.items():
            for line, direction in enumerate(directions):
                for x, energy in zip(offsets.tolist(), surface.curve(direction, offsets).tolist(), strict=True):
                    yield _row(surface, "curve", over, line, x, 0.0, energy)
        on_path = surface._energies(surface.path).tolist()
        for over, directions in {"random": random[:2], "path": own}.items():
            for x, line_of in zip(offsets.tolist(), surface.plane(directions, offsets).tolist(), strict=True):
                for y, energy in zip(offsets.tolist(), line_of, strict=True):
                    yield _row(surface, "plane", over, 0, x, y, energy)
            for step, (x, y) in enumerate(surface.coordinates(directions).tolist()):
                yield _row(surface, "path", over, step, x, y, on_path[step])


def _row(surface: Surface, kind: str, over: str, line: int, x: float, y: float, energy: float) -> Row:
    return {"space": surface.space, "kind": kind, "over": over, "line": line, "x": x, "y": y, "energy": energy}
