"""The claims of an artifact with their judgements, as lines of a table and as a document."""

from collections.abc import Sequence
from typing import Any

from paper_repro.artifacts.claims import HOLDS, Claim, Judgement
from paper_repro.artifacts.guards import NOT_JUDGED
from paper_repro.artifacts.typesetting import Grid

WHOSE = {"paper": "the paper's", "ours": "ours"}
"""Whose a claim is, as a document has it and as a reader is told."""
MAY_PASS = "may_pass"
"""Said in a document of a claim that is not judged, and that more seeds may let be judged."""
CLAIM_PARTS = 6
"""The most parts of a claim that a table shows in full: of more, those that hold are told by the nearest to fail."""
OPPOSITE = "the opposite"


def claims_grid(judgements: Sequence[tuple[Claim, Judgement]]) -> Grid:
    """Return a line for each claim, and below it one for each estimate or count that it is put together from."""
    rows = []
    for claim, judgement in judgements:
        whose = f"{_whose(claim)}: {claim.where}"
        rows.append([claim.id, whose, claim.says, f"**{judgement.word}**", judgement.reason])
        rows += [["", "", label, part.word, part.reason] for label, part in _shown(_parts(judgement))]
    return Grid(["claim", "whose", "what is claimed", "verdict", "because"], rows)


def _parts(judgement: Judgement, *path: str) -> list[tuple[str, Judgement]]:
    """Return the parts that have no parts, each with the labels on the way to it."""
    if not judgement.parts:
        return [(": ".join(filter(None, path)), judgement)] if path else []
    path = (*path, OPPOSITE) if judgement.negated else path
    return [found for label, part in judgement.parts for found in _parts(part, *path, label)]


def _shown(parts: Sequence[tuple[str, Judgement]]) -> list[tuple[str, Judgement]]:
    """Return the parts that a table has room for; all of them stand in table.json."""
    if len(parts) <= CLAIM_PARTS:
        return [*parts]
    found = [(label, part) for label, part in parts if part.verdict != HOLDS]
    estimates = [
        (label, part, part.tested.inside(0.0)) for label, part in parts if part.verdict == HOLDS and part.tested
    ]
    if estimates:
        label, part, _ = max(estimates, key=lambda one: one[2])
        found.append((f"{label} (the nearest to fail of {len(estimates)} that hold)", part))
    return found


def claim_document(claim: Claim, judgement: Judgement) -> dict[str, Any]:
    """Return what table.json says of a claim."""
    return {
        "id": claim.id,
        "catalogue": claim.catalogue,
        "whose": _whose(claim),
        "where": claim.where,
        "says": claim.says,
        **_judgement_document(judgement),
        **({MAY_PASS: True} if judgement.verdict == NOT_JUDGED and judgement.is_open else {}),
    }


def _whose(claim: Claim) -> str:
    return "ours" if claim.ours else "paper"


def _judgement_document(judgement: Judgement) -> dict[str, Any]:
    return {
        "verdict": judgement.verdict,
        "size": judgement.size,
        "exact": judgement.is_exact,
        "because": judgement.because,
        "remark": judgement.remark,
        "more_seeds": judgement.more,
        "more_seconds": None if judgement.price is None else round(judgement.price),
        "parts": [{"at": label, **_judgement_document(part)} for label, part in judgement.parts],
    }
