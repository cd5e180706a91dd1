"""The contact sheet: all figures on one page, for each paper those of its appendices last."""

import re
from collections.abc import Iterator

from paper_repro.report.artifact_page import file_path
from paper_repro.report.markup import Markup, address, tag
from paper_repro.report.shell import filters, link, page, paper_name
from paper_repro.report.source import Result, Source

HERE = "figures.html"
MAIN, APPENDIX = "figure.svg", "figure_appendix.svg"
OF_APPENDIX = re.compile(r"(fig|table)[A-Z]")
"""How the artifacts of a paper's appendices are called."""


def figures_page(source: Source) -> bytes:
    """Return the page."""
    figures = [(result, name) for result in source.results for name in (MAIN, APPENDIX) if name in result.files]
    papers = {result.paper: paper_name(result.paper) for result, _ in figures}
    entries = [_entry(*figure) for paper in papers for figure in _ordered(paper, figures)]
    controls = filters("figures", {"paper": ("Paper", papers)})
    lead = tag("p", "All figures of the results; a click opens the page of one, with the numbers behind its marks.")
    return page(HERE, "Figures", tag("h1", "Figures"), lead, controls, tag("div", entries, class_="sheet"), wide=True)


def _ordered(paper: str, figures: list[tuple[Result, str]]) -> Iterator[tuple[Result, str]]:
    """Yield the figures of a paper: those of its own text, and then those of its appendices."""
    for appended in (False, True):
        for result, name in figures:
            own = result.id.partition("/")[2]
            if result.paper == paper and appended == (name == APPENDIX or OF_APPENDIX.match(own) is not None):
                yield result, name


def _entry(result: Result, name: str) -> Markup:
    title = result.document["title"]
    picture = tag("img", src=address(file_path(result, name)), alt=title, loading="lazy")
    what = f", scale {result.scale}{', appendix of the figure' if name == APPENDIX else ''}. {title}"
    return tag(
        "figure",
        link(HERE, result.page, picture, class_="sheet-picture"),
        tag("figcaption", tag("code", result.id), what),
        data_entry=True,
        data_paper=result.paper,
        data_text=f"{result.id} {title}".lower(),
    )
