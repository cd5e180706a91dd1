"""The contact sheet: all figures on one page."""

from paper_repro.report.artifact_page import file_path
from paper_repro.report.markup import address, tag
from paper_repro.report.shell import filters, link, page, paper_name
from paper_repro.report.source import Source

HERE = "figures.html"


def figures_page(source: Source) -> bytes:
    """Return the page."""
    entries, papers = [], dict[str, str]()
    for result in source.results:
        if "figure.svg" not in result.files:
            continue
        papers[result.paper] = paper_name(result.paper)
        picture = tag("img", src=address(file_path(result, "figure.svg")), alt=result.document["title"], loading="lazy")
        caption = [tag("code", result.id), f", scale {result.scale}. {result.document['title']}"]
        entries.append(
            tag(
                "figure",
                link(HERE, result.page, picture, class_="sheet-picture"),
                tag("figcaption", caption),
                data_entry=True,
                data_paper=result.paper,
                data_text=f"{result.id} {result.document['title']}".lower(),
            )
        )
    controls = filters("figures", {"paper": ("Paper", papers)})
    lead = tag("p", "All figures of the results; a click opens the page of one, with the numbers behind its marks.")
    return page(HERE, "Figures", tag("h1", "Figures"), lead, controls, tag("div", entries, class_="sheet"), wide=True)
