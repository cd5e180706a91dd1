"""The resolved config of one cell of an artifact, with the origin of each value."""

from collections.abc import Sequence

from paper_repro.artifacts.artifact import Artifact
from paper_repro.base.config import file_of
from paper_repro.base.errors import UsageError, nearest
from paper_repro.base.origins import explained


def explain(artifact: Artifact, scale: str, words: Sequence[str], seed: int | None = None) -> str:
    """Return one cell's config as YAML, with a comment behind each value that says where it comes from.

    Args:
        artifact: the artifact.
        scale: the scale word.
        words: ``axis=value`` for the cell's place, several with commas; any other word is an override.  Of the axes
            left open, the first point that the scale runs is taken.
        seed: the seed; None for the scale's first.

    Raises:
        UsageError: an unknown scale or axis value, no such point at the scale, or an override that does not fit.
    """
    word, spec = artifact.scale(scale)
    place: dict[str, str] = {}
    overrides: list[str] = []
    for text in words:
        found = _place(artifact, text)
        if clash := [axis for axis in found if axis in place]:
            raise UsageError(f"{text}: axis '{clash[0]}' is given twice")
        place.update(found)
        overrides += [] if found else [text]
    keys = [key for key in artifact.points(spec) if place.items() <= dict(key).items()]
    if not keys:
        given = ", ".join(f"{axis}={value}" for axis, value in place.items())
        raise UsageError(f"{artifact.id} runs no cell with {given} at scale {word}; --plan shows its cells")
    chosen = spec.seeds[0] if seed is None else seed
    at = ", ".join(f"{axis}={value}" for axis, value in keys[0])
    others = f" (the first of {len(keys)} with what was given)" if len(keys) > 1 else ""
    title = f"# {artifact.id} at scale {word}: {at}, seed {chosen}{others}"
    return f"{title}\n{explained(artifact.experiment, [*artifact.overrides(keys[0], spec), *overrides], chosen)}"


def _place(artifact: Artifact, text: str) -> dict[str, str]:
    """Return the axis values that a word gives; none where it is an override."""
    key, _, value = text.partition("=")
    if key not in artifact.axes or file_of(f"{key}/{value}") is not None:
        return {}
    first, *rest = value.split(",")
    found = {key: first, **{axis: one for axis, _, one in (part.strip().partition("=") for part in rest)}}
    for axis, one in found.items():
        if axis == "seed":
            raise UsageError(f"{artifact.id}: {text}: the seed is a word of its own: {key}={first} ... seed={one}")
        if axis not in artifact.axes:
            raise UsageError(f"{artifact.id}: {text}: unknown axis '{axis}'{nearest(axis, artifact.axes)}")
        values = artifact.axes[axis].values
        if one not in values:
            raise UsageError(f"{artifact.id}: {text}: axis '{axis}' has no value '{one}'{nearest(one, values)}")
    return found
