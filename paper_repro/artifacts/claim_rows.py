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
"""A claim with more parts than this shows only those that do not hold."""


def claims_grid(judgements: Sequence[tuple[Claim, Judgement]]) -> Grid:
    """Return a line for each claim, and below it one for each of its parts that has a name."""
    rows = []
    for claim, judgement in judgements:
        whose = f"{_whose(claim)}: {claim.where}"
        rows.append([claim.id, whose, claim.says, f"**{judgement.word}**", judgement.reason])
        parts = [(label, part) for label, part in judgement.parts if label]
        if len(parts) > CLAIM_PARTS:  # all of them stand in table.json
            parts = [(label, part) for label, part in parts if part.verdict != HOLDS]
        rows += [["", "", label, part.word, part.reason] for label, part in parts]
    return Grid(["claim", "whose", "what is claimed", "verdict", "because"], rows)


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
