"""What all pages of a report share: the frame, links, verdicts, filters and tables."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from paper_repro.artifacts.guards import NOT_JUDGED
from paper_repro.artifacts.judgements import FAILS, HOLDS, OTHER_SCALE, SMALL, UNDECIDED
from paper_repro.artifacts.verdicts import ALTERED, FITTED, NOT_RUN, OFF, REDUCED, REPRODUCED
from paper_repro.report.markup import Markup, address, tag

TITLE = "paper_repro"
STYLE, SCRIPT = "static/report.css", "static/report.js"
PAPERS = {"nrgpt": "NRGPT", "ngpt": "nGPT", "cet": "CET", "ebt": "EBT", "cem": "CEM"}
"""How the papers are called; a folder of somebody's own is called by its own name."""
MENU = {
    "index.html": "Artifacts",
    "claims.html": "Claims",
    "figures.html": "Figures",
    "papers.html": "Papers and code",
    "benches.html": "Speeds",
    "records.html": "Records",
}
CLAIM_VERDICTS = (HOLDS, FAILS, SMALL, UNDECIDED, NOT_JUDGED, OTHER_SCALE)
TONES = {
    HOLDS: "good",
    REPRODUCED: "good",
    FITTED: "fitted",
    FAILS: "bad",
    OFF: "bad",
    UNDECIDED: "open",
    SMALL: "small",
    NOT_JUDGED: "mute",
    OTHER_SCALE: "mute",
    REDUCED: "mute",
    ALTERED: "mute",
    NOT_RUN: "mute",
}
"""The colour of each verdict, as a class of the style sheet."""


def page(path: str, title: str, *content: Any, wide: bool = False) -> bytes:
    """Return a whole page.

    Args:
        path: where it will lie below the folder of the report; its links are relative to that.
        title: its name in the browser.
        content: what stands between the menu and the foot.
        wide: whether it may be wider than a text that is read.
    """
    up = upward(path)
    entries = [
        tag("a", label, href=f"{up}{name}", aria_current="page" if name == path else None)
        for name, label in MENU.items()
    ]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{title} · {TITLE}"),
        tag("link", rel="icon", href="data:,"),
        tag("link", rel="stylesheet", href=f"{up}{STYLE}"),
        Markup(f'<script src="{up}{SCRIPT}" defer></script>'),
    )
    body = tag(
        "body",
        tag("a", "To the content", class_="skip", href="#content"),
        tag("header", tag("a", TITLE, class_="home", href=f"{up}index.html"), tag("nav", entries), class_="top"),
        tag("main", content, id="content", class_="wide" if wide else None),
        tag(
            "footer",
            "Built by scripts/report.py from the files below results/. Each number of ours comes from a sealed record.",
        ),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n".encode()


def upward(path: str) -> str:
    """Return the way from a page to the folder of the report: ``../../`` from two folders below."""
    return "../" * path.count("/")


def link(here: str, there: str, *text: Any, **attributes: Any) -> Markup:
    """Return a link from one page to a file of the report."""
    return tag("a", text, href=f"{upward(here)}{address(there)}", **attributes)


def paper_name(paper: str) -> str:
    return PAPERS.get(paper, paper)


def verdict(word: str, text: str = "") -> Markup:
    """Return a verdict in its colour; nothing for none."""
    return tag("span", text or word, class_=f"verdict {TONES.get(word, 'mute')}") if word else Markup()


def claim_word(judged: Mapping[str, Any]) -> str:
    """Return the verdict of a claim, or of a part of one, as tables print it."""
    if judged["verdict"] == SMALL and judged.get("size"):
        return f"{SMALL} of {judged['size']}"
    exact = judged["verdict"] in (HOLDS, FAILS) and judged.get("exact")
    return f"{judged['verdict']} (exact)" if exact else str(judged["verdict"])


def tally(verdicts: Iterable[str]) -> Markup:
    """Return a bar with a length for each verdict on claims, and the counts in words; nothing for no claim."""
    counts = Counter(verdicts)
    known = [*(word for word in CLAIM_VERDICTS if word in counts), *sorted(counts.keys() - {*CLAIM_VERDICTS})]
    if not known:
        return Markup()
    bar = [tag("i", class_=TONES.get(word, "mute"), style=f"flex:{counts[word]}") for word in known]
    words = [tag("span", tag("b", counts[word]), f" {word}", class_=TONES.get(word, "mute")) for word in known]
    return tag("div", tag("div", bar, class_="bar", aria_hidden="true"), tag("p", words), class_="tally")


def filters(name: str, groups: Mapping[str, tuple[str, Mapping[str, str]]]) -> Markup:
    """Return the controls that filter the entries of a page; they need the script and are hidden without it.

    Args:
        name: what is counted, for example "artifacts".
        groups: for each attribute of an entry (``data-paper``: paper) its title, and its values with their labels.
    """
    rows = []
    for attribute, (title, values) in groups.items():
        buttons = [
            tag("button", label, type="button", data_filter=attribute, data_value=value, aria_pressed="false")
            for value, label in values.items()
        ]
        rows.append(tag("div", tag("span", title, class_="label"), buttons, role="group", aria_label=title))
    search = tag(
        "label",
        tag("span", "Search", class_="label"),
        tag("input", type="search", data_search=True, placeholder="words, in any order", autocomplete="off"),
    )
    count = tag("output", data_count=name, aria_live="polite")
    return tag("form", rows, tag("div", search, count, class_="search"), class_="filters", hidden=True)


def table(headers: Sequence[Any], rows: Iterable[Sequence[Any]], class_: str = "") -> Markup:
    """Return a table in a box of its own, which scrolls where the table is wider than the page."""
    head = tag("thead", tag("tr", [tag("th", header, scope="col") for header in headers]))
    body = tag("tbody", [tag("tr", [tag("td", cell) for cell in row]) for row in rows])
    return scrolling(tag("table", head, body, class_=class_ or None))


def scrolling(content: Markup, class_: str = "scroll") -> Markup:
    return tag("div", content, class_=class_, tabindex="0")


def facts(pairs: Iterable[tuple[str, Any]]) -> Markup:
    """Return names with their values; a value of nothing leaves its name out."""
    return tag("dl", [(tag("dt", name), tag("dd", value)) for name, value in pairs if value], class_="facts")


def number(value: float) -> str:
    """Write a number of any size in at most six digits: 1,234,567 or 0.0123457."""
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:.6g}"
