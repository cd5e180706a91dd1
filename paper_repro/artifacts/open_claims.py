"""What the committed reference has not decided: what would decide it, and what that costs."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tabulate import tabulate

from paper_repro.artifacts.claim_rows import MAY_PASS, WHOSE
from paper_repro.artifacts.guards import NOT_JUDGED
from paper_repro.artifacts.judgements import OTHER_SCALE, UNDECIDED
from paper_repro.base.durations import duration

PAGE = """# What is not decided

Of the {judged} claims that are judged at scale `cpu`, {undecided} are undecided ({share:.0%}); another {elsewhere} are
made for larger scales. The price is the time of one processor core for the seeds that would decide, if means and
spreads stay as they are. It is a guess from few seeds: the truth may be half of it or twice as much. It counts all
models of the claim, also those that another artifact has run at these seeds; `--decide` runs none of them twice. The
{priced} claims with a price cost {total} together; some of them share their cells.
Seeds are those up to the first planned look that would decide, and `reproduce.py ARTIFACT --decide --hours H` takes
them, the claim first that costs least. Where no planned look would decide, the last column says how many seeds it would
take beyond the plan, and what they would cost: looks that nobody planned are not taken
([docs/verdicts.md](../docs/verdicts.md#more-seeds)). What is known is what the undecided parts of a claim rest on.

{table}
{below}"""
BELOW = """
## Not judged

These claims read a model that is not better than its floor. Where the interval of its difference from the floor
reaches the better side, more seeds may show that it is, and `--decide` takes the looks that are planned. Else, and
where no look is left, it takes longer training or other settings.

{table}
"""
UNKNOWN = "not known"
REDUCED = "cpu"
"""The scale whose claims more seeds can decide on two cores."""


@dataclass(frozen=True)
class OpenClaim:
    """A claim that is undecided at scale cpu."""

    artifact: str
    claim: str
    whose: str
    """"paper" or "ours"."""
    seeds: int | None
    """How many more seeds would decide it if means and spreads stay as they are; None: nobody can say."""
    seconds: float | None
    """Seconds of a processor that they take; None: not known."""
    why: str
    """What the verdict rests on."""
    looks: tuple[int, ...] = ()
    """Numbers of seeds at which its scale plans to judge it; none where no seeds may be added."""

    @property
    def words(self) -> tuple[str, str]:
        """The number of seeds and their price in words."""
        price = UNKNOWN if self.seconds is None else duration(self.seconds)
        return UNKNOWN if self.seeds is None else str(self.seeds), price


@dataclass(frozen=True)
class Openness:
    """The claims of scale cpu that are not decided."""

    judged: int
    """The claims that may be judged at that scale."""
    elsewhere: int
    """Those that larger scales are for."""
    undecided: tuple[OpenClaim, ...]
    """The cheapest first; those without a price at the end."""
    below: Mapping[str, int]
    """By artifact, how many claims are not judged because a model is not better than its floor."""
    may_pass: Counter[str]
    """By artifact, how many of these more seeds may let be judged."""

    @property
    def share(self) -> float:
        """The share of the claims that is undecided."""
        return len(self.undecided) / max(1, self.judged)


def openness(tables: Iterable[Mapping[str, Any]]) -> Openness:
    """Return what is not decided in documents of tables, as table.json has them; those of other scales are left out."""
    claims = [(table, claim) for table in tables if table["scale"] == REDUCED for claim in table["claims"]]
    undecided = [_open(table, claim) for table, claim in claims if claim["verdict"] == UNDECIDED]
    below = Counter(table["artifact"] for table, claim in claims if claim["verdict"] == NOT_JUDGED)
    may_pass = Counter(table["artifact"] for table, claim in claims if claim.get(MAY_PASS))
    elsewhere = sum(claim["verdict"] == OTHER_SCALE for _, claim in claims)
    return Openness(len(claims) - elsewhere, elsewhere, tuple(sorted(undecided, key=_order)), below, may_pass)


def _open(table: Mapping[str, Any], claim: Mapping[str, Any]) -> OpenClaim:
    seeds, remark = claim.get("more_seeds"), claim.get("remark")
    why = "; ".join([*_reasons(claim), *([remark] if remark and seeds is None else [])])
    looks = tuple(table.get("looks", ()))
    return OpenClaim(table["artifact"], claim["id"], claim["whose"], seeds, claim.get("more_seconds"), why, looks)


def _reasons(judged: Mapping[str, Any]) -> list[str]:
    """Return what the undecided parts that have no parts rest on."""
    parts = [part for part in judged.get("parts", ()) if part["verdict"] == UNDECIDED]
    return [reason for part in parts for reason in _reasons(part)] if parts else [judged["because"]]


def _order(one: OpenClaim) -> tuple[bool, float, str, str]:
    return one.seconds is None, one.seconds or 0.0, one.artifact, one.claim


def page(tables: Iterable[Mapping[str, Any]]) -> str:
    """Return the page that lists what is not decided in documents of tables, in Markdown."""
    found = openness(tables)
    prices = [one.seconds for one in found.undecided if one.seconds is not None]
    rows = [
        [_linked(one.artifact), one.claim, WHOSE.get(one.whose, one.whose), _looks(one), *one.words, one.why]
        for one in found.undecided
    ]
    headers = ["artifact", "claim", "whose", "looks at", "more seeds", "one core", "what is known"]
    below = [[_linked(name), str(count), str(found.may_pass[name])] for name, count in sorted(found.below.items())]
    return PAGE.format(
        judged=found.judged,
        elsewhere=found.elsewhere,
        undecided=len(found.undecided),
        share=found.share,
        priced=len(prices),
        total=duration(sum(prices)),
        table=_table(rows, headers),
        below=BELOW.format(table=_table(below, ["artifact", "claims", "more seeds may help"])) if below else "",
    )


def _looks(one: OpenClaim) -> str:
    return ", ".join(map(str, one.looks)) or "none"


def _linked(artifact: str) -> str:
    return f"[{artifact}]({artifact}/{REDUCED}/table.md)"


def _table(rows: list[list[str]], headers: list[str]) -> str:
    return tabulate(rows, headers, tablefmt="github", disable_numparse=True) if rows else "None."
