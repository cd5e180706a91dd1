"""The first page: every artifact as a card with its verdicts, filtered by paper, verdict and words."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from paper_repro.artifacts.artifact import Artifact
from paper_repro.artifacts.verdicts import FITTED, NOT_RUN, OFF, REDUCED, REPRODUCED
from paper_repro.report.markup import Markup, tag
from paper_repro.report.shell import (
    CLAIM_VERDICTS,
    PAPERS,
    TONES,
    filters,
    link,
    page,
    paper_name,
    tally,
)
from paper_repro.report.source import Result, Source

HERE = "index.html"
NUMBER_VERDICTS = (REPRODUCED, FITTED, OFF, REDUCED)
NO_RESULT = "no result"


def index_page(source: Source) -> bytes:
    """Return the page."""
    claims = source.counted_claims
    missing = sorted(source.artifacts.keys() - {result.id for result in source.results})
    lead = tag(
        "p",
        f"Tables and figures of {_counted_papers(source)} on energy-based and normalized transformers, run again. A "
        "card leads to the paper's numbers beside ours, the figure, the claims with their verdicts, and the record "
        f"behind each number. {_about_scales(source)}",
        class_="lead",
    )
    whole = [
        tag("section", tag("h2", title), tally(claim["verdict"] for claim in claims if claim["whose"] == whose))
        for whose, title in (("paper", "The papers' claims"), ("ours", "Questions of ours"))
    ]
    cards = [_card(result) for result in source.results]
    cards += [_without_result(source.artifacts[name], source.is_reference) for name in missing]
    cards += [_faulty(name, error) for name, error in source.faults.items()]
    papers = dict.fromkeys([result.paper for result in source.results] + [name.partition("/")[0] for name in missing])
    words = dict.fromkeys(word for result in source.results for word in (*_number_words(result), *_claim_words(result)))
    verdicts = [word for word in (*CLAIM_VERDICTS, *NUMBER_VERDICTS) if word in words]
    controls = filters(
        "artifacts",
        {
            "paper": ("Paper", {paper: paper_name(paper) for paper in papers}),
            "verdict": ("Verdict", {word: word for word in (*verdicts, NO_RESULT)}),
        },
    )
    content = [tag("h1", "Papers, run again"), lead, tag("div", whole, class_="totals"), controls]
    return page(HERE, "Artifacts", content, tag("div", cards, class_="cards"), wide=True)


def _number_words(result: Result) -> list[str]:
    """Return the verdicts on numbers, without those of numbers that were not run or are not printed."""
    return [row["verdict"] for row in result.document["rows"] if row.get("verdict") not in ("", None, NOT_RUN)]


def _claim_words(result: Result) -> list[str]:
    return [claim["verdict"] for claim in result.document["claims"]]


def _entry(paper: str, verdicts: Sequence[str], text: str, *content: Any) -> Markup:
    words = "|".join(dict.fromkeys(verdicts))
    return tag("article", content, class_="card", data_entry=True, data_paper=paper, data_verdict=words, data_text=text)


def _card(result: Result) -> Markup:
    document: Mapping[str, Any] = result.document
    numbers, claims = Counter(_number_words(result)), _claim_words(result)
    counted = [
        tag("span", tag("b", numbers[word]), f" {word}", class_=TONES.get(word, "mute"))
        for word in [*NUMBER_VERDICTS, *sorted(numbers.keys() - {*NUMBER_VERDICTS})]
        if word in numbers
    ]
    seeds, most = len(document.get("seeds") or ()), result.most_seeds
    counted_seeds = f"{seeds} to {most} seeds" if most > seeds > 0 else f"{seeds} seeds" if seeds > 1 else ""
    scale = ", ".join(filter(None, (f"scale {result.scale}", counted_seeds)))
    text = f"{result.id} {document['title']} {document['source']} {document['made_of']} {result.scale}".lower()
    return _entry(
        result.paper,
        [*claims, *numbers],
        text,
        tag("p", tag("span", paper_name(result.paper)), tag("code", result.id), class_="over"),
        tag("h3", link(HERE, result.page, document["title"])),
        tag("p", f"{document['made_of']}; {scale}", class_="small"),
        tag("div", tally(claims), tag("p", "numbers: ", counted, class_="numbers") if counted else None, class_="foot"),
    )


def _counted_papers(source: Source) -> str:
    papers = {result.paper for result in source.results}
    known, own = len(papers & PAPERS.keys()), len(papers - PAPERS.keys())
    nouns = ((known, "paper", "papers"), (own, "own study", "own studies"))
    return " and ".join(f"{count} {many if count > 1 else one}" for count, one, many in nouns if count)


def _about_scales(source: Source) -> str:
    small = [word for word in ("smoke", "cpu", "gpu") if word in {result.scale for result in source.results}]
    if not small:
        return ""
    scales = f"At scale {' and '.join(small)}" if len(small) < 3 else "At the scales smoke, cpu and gpu"
    return f"{scales} models and data are small: such a number is shown beside the paper's and never judged against it."


def _without_result(artifact: Artifact, is_reference: bool) -> Markup:
    kind = "No result is published yet. " if is_reference else "It has not been run in this folder. "
    command = f"python scripts/reproduce.py {artifact.id}"
    return _entry(
        artifact.id.partition("/")[0],
        [NO_RESULT],
        f"{artifact.id} {artifact.title}".lower(),
        tag("p", tag("span", paper_name(artifact.id.partition("/")[0])), tag("code", artifact.id), class_="over"),
        tag("h3", artifact.title),
        tag("p", kind, tag("code", command), " makes one.", class_="small"),
    )


def _faulty(name: str, error: str) -> Markup:
    return _entry(
        name.partition("/")[0],
        [NO_RESULT],
        name,
        tag("p", tag("span", paper_name(name.partition("/")[0])), tag("code", name), class_="over"),
        tag("h3", "Its file has an error"),
        tag("p", error, class_="small"),
    )
