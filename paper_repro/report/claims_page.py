"""Claims with verdicts, reasons and parts: the list of an artifact, and the ledger of all of them."""

from collections.abc import Mapping
from typing import Any

from paper_repro.artifacts import paper_claims
from paper_repro.artifacts.claim_rows import WHOSE
from paper_repro.artifacts.judgements import reason
from paper_repro.artifacts.open_claims import REDUCED, openness
from paper_repro.report.markup import Markup, tag
from paper_repro.report.shell import CLAIM_VERDICTS, claim_word, filters, link, page, paper_name, table, tally, verdict
from paper_repro.report.source import Result, Source

HERE = "claims.html"


def claims_page(source: Source) -> bytes:
    """Return the ledger: every claim of every artifact."""
    entries, papers = [], dict[str, str]()
    for result in source.results:
        for claim in result.document["claims"]:
            papers[result.paper] = paper_name(result.paper)
            text = f"{result.id} {claim['id']} {claim['says']} {claim['where']} {claim['because']}".lower()
            altered = ", altered" if result.document.get("overrides") else ""
            place = link(HERE, result.page, tag("code", result.id), f", scale {result.scale}{altered}")
            entries.append(
                tag(
                    "li",
                    claim_item(claim, tag("p", paper_name(result.paper), " ", place, class_="over")),
                    data_entry=True,
                    data_paper=result.paper,
                    data_verdict=claim["verdict"],
                    data_whose=claim["whose"],
                    data_text=text,
                )
            )
    claims = [claim for result in source.results for claim in result.document["claims"]]  # of all scales
    there = {claim["verdict"] for claim in claims}
    verdicts = [*(word for word in CLAIM_VERDICTS if word in there), *sorted(there - {*CLAIM_VERDICTS})]
    controls = filters(
        "claims",
        {
            "paper": ("Paper", papers),
            "verdict": ("Verdict", {word: word for word in verdicts}),
            "whose": ("Whose", {whose: WHOSE.get(whose, whose) for whose in sorted({one["whose"] for one in claims})}),
        },
    )
    lead = (
        "A claim is a sentence of a paper, or a question of ours, written as a predicate over cells and judged by an "
        "interval of 95 % over seeds or by exact arithmetic. At scale cpu it is judged on small models and small data: "
        "what fails or holds there may do otherwise at full scale."
    )
    content = [
        tag("h1", "Claims"),
        tag("p", lead, class_="lead"),
        tally(claim["verdict"] for claim in source.counted_claims),
    ]
    ledger = tag("ol", entries, class_="claims")
    return page(HERE, "Claims", content, controls, ledger, _prices(source), _untested(source))


def _prices(source: Source) -> Markup:
    """Return the undecided claims of scale cpu, the one that is decided at the lowest price first."""
    pages = {result.id: result.page for result in source.results if result.scale == REDUCED}
    found = openness(result.document for result in source.results).undecided
    if not found:
        return Markup()
    rows = [
        [link(HERE, pages[one.artifact], tag("code", one.artifact)), tag("code", one.claim), *one.words]
        for one in found
    ]
    lead = (
        "More seeds that would decide a claim of scale cpu if means and spreads stay as they are, and the time of one "
        "processor core that they take: a guess, the truth may be half of it or twice as much."
    )
    heading = tag("h2", "What would decide the undecided", id="prices")
    return tag("section", heading, tag("p", lead), table(["artifact", "claim", "more seeds", "one core"], rows))


def _untested(source: Source) -> Markup:
    """Return the claims of the papers that no artifact of the catalogue tests."""
    tested = {claim.catalogue for artifact in source.artifacts.values() for claim in artifact.claims}
    left = [claim for claim in paper_claims.known().values() if claim.id not in tested]
    if not left:
        return Markup()
    items = [
        tag("li", f"{claim.says}. ", tag("span", f"{claim.paper}, {claim.where}", class_="soft")) for claim in left
    ]
    return tag("section", tag("h2", "Listed and not tested yet"), tag("ul", items))


def claims_of(result: Result) -> Markup:
    """Return the claims of one artifact, for its own page."""
    items = [tag("li", claim_item(claim), id=f"claim-{claim['id']}") for claim in result.document["claims"]]
    return tag("ol", items, class_="claims")


def claim_item(claim: Mapping[str, Any], over: Any = None) -> Markup:
    """Return one claim: what it says, its verdict with the reason, and its parts."""
    whose = f"{WHOSE.get(claim['whose'], claim['whose'])}: {claim['where']}"
    return tag(
        "div",
        over,
        tag("p", verdict(claim["verdict"], claim_word(claim)), " ", claim["says"], class_="says"),
        tag("p", _because(claim), class_="because"),
        tag("p", whose, " · ", tag("code", claim["id"]), class_="soft"),
        _parts(claim),
        class_="claim",
    )


def _because(judged: Mapping[str, Any]) -> str:
    """Return what a verdict rests on, with what would decide it."""
    because, remark = judged.get("because", ""), judged.get("remark", "")
    return reason(because, remark, judged.get("more_seeds"), judged.get("more_seconds"))


def _parts(judged: Mapping[str, Any]) -> Markup:
    parts = judged.get("parts", ())
    if not parts:
        return Markup()
    items = [
        tag(
            "li",
            verdict(part["verdict"], claim_word(part)),
            " ",
            [tag("b", part["at"]), " "] if part["at"] else None,
            _because(part),
            _parts(part),
        )
        for part in parts
    ]
    count = f"{len(parts)} part{'s' if len(parts) > 1 else ''}"
    return tag("details", tag("summary", count), tag("ul", items, class_="parts"), open=len(parts) <= 3)
