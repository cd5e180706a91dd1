from collections.abc import Sequence
from typing import Any

from paper_repro.artifacts.open_claims import OpenClaim, openness, page


def claim(
    name: str, verdict: str, seeds: int | None = None, seconds: float | None = None, **more: Any
) -> dict[str, Any]:
    found = {"id": name, "whose": "paper", "verdict": verdict, "because": f"why {name}", "parts": []}
    return {**found, "more_seeds": seeds, "more_seconds": seconds, **more}


def table(artifact: str, *claims: dict[str, Any], scale: str = "cpu", looks: Sequence[int] = ()) -> dict[str, Any]:
    return {"artifact": artifact, "scale": scale, "claims": list(claims), "looks": [*looks]}


PARTS = [
    {"at": "a", "verdict": "holds", "because": "sure", "parts": []},
    {"at": "b", "verdict": "undecided", "because": "", "parts": [claim("inner", "undecided")]},
    {"at": "c", "verdict": "undecided", "because": "too wide", "parts": []},
]
TABLES = [
    table("a/fig1", claim("dear", "undecided", 9, 7200), claim("sure", "holds"), claim("nobody_knows", "undecided")),
    table(
        "a/fig2",
        claim("cheap", "undecided", 1, 60, parts=PARTS, whose="ours"),
        claim("low", BELOW := "not judged: below the floor"),
        claim("may_rise", BELOW, may_pass=True),
        looks=[3, 5],
    ),
    table("b/fig1", claim("bad", BELOW), claim("worse", BELOW), claim("large", "not judged: another scale")),
    table("b/table1", claim("arithmetic", "undecided", 1, 1), scale="exact"),
]


def test_the_cheapest_comes_first_and_what_has_no_price_last() -> None:
    found = openness(TABLES)
    assert [one.claim for one in found.undecided] == ["cheap", "dear", "nobody_knows"]
    assert found.undecided[0] == OpenClaim("a/fig2", "cheap", "ours", 1, 60, "why inner; too wide", (3, 5))
    assert found.judged == 8 and found.elsewhere == 1 and found.share == 3 / 8
    assert found.below == {"a/fig2": 2, "b/fig1": 2} and found.may_pass == {"a/fig2": 1}


def test_the_page_says_share_prices_and_what_is_below_a_floor() -> None:
    text = page(TABLES)
    said = " ".join(text.split())
    assert "Of the 8 claims that are judged at scale `cpu`, 3 are undecided (38%); another 1 are" in said
    assert "The 2 claims with a price cost 2.0 h together" in said
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| [")]
    assert rows[0] == ["[a/fig2](a/fig2/cpu/table.md)", "cheap", "ours", "3, 5", "1", "60 s", "why inner; too wide"]
    assert rows[2][3:6] == ["none", "not known", "not known"]
    assert rows[3:] == [["[a/fig2](a/fig2/cpu/table.md)", "2", "1"], ["[b/fig1](b/fig1/cpu/table.md)", "2", "0"]]
    assert "arithmetic" not in text


def test_where_all_is_decided_the_page_says_so() -> None:
    text = page([table("a/fig1", claim("sure", "fails"))])
    assert "0 are undecided (0%)" in text and "None." in text and "Not judged" not in text
