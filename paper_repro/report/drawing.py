"""A published SVG as a tree that can stand in a page: known elements alone, no scripts and no outside addresses."""

import re
from collections.abc import Iterator
from xml.etree import ElementTree

from paper_repro.report.markup import Markup, escaped, tag

Element = ElementTree.Element
_SHAPES = ("path", "rect", "circle", "line", "polyline", "polygon", "ellipse")
DRAWN = frozenset(("svg", "g", "use", "defs", "clipPath", "text", "tspan", "image", *_SHAPES))
"""The elements that are kept."""
INSIDE = ("#", "data:image/png;base64,")
"""How an address begins that leads nowhere else."""
SANS = re.compile(r"font-family: 'DejaVu Sans',[^;\"]*;? ?")
"""The fonts that the page's own style names once for all figures."""
POWER = re.compile(r"(-?)10\^(-?\d+)")
"""A power of ten as ``_formula`` writes it."""
NUMBERS = re.compile(r"-?[0-9.]+(?:e-?[0-9]+)?")


class DrawingError(ValueError):
    """A file that is no SVG."""


def read(content: bytes) -> Element:
    """Return an SVG's tree, cleaned; names have no namespaces any more.

    Raises:
        DrawingError: it is no SVG.
    """
    try:
        root = ElementTree.fromstring(content)
    except (ElementTree.ParseError, ValueError) as error:
        raise DrawingError(str(error)) from error
    if _plain(root.tag) != "svg" or not root.get("viewBox"):
        raise DrawingError("no svg element with a viewBox")
    _clean(root)
    return root


def _plain(name: object) -> str:
    return str(name).rpartition("}")[2]


def _clean(node: Element) -> None:
    node.tag = _plain(node.tag)
    for name, value in list(node.attrib.items()):
        del node.attrib[name]
        plain = _plain(name)
        outside = plain == "href" and not value.startswith(INSIDE)
        if not (plain.startswith("on") or outside or "url(" in value.replace("url(#", "")):
            node.attrib[plain] = SANS.sub("", value) if plain == "style" else value
    for child in list(node):
        if _plain(child.tag) in DRAWN:
            _clean(child)
        else:
            node.remove(child)


def html(node: Element) -> Markup:
    """Return a tree as inline SVG."""
    texts = {name: " ".join(value.split()) if name == "d" else value for name, value in node.attrib.items()}
    inner = [escaped((node.text or "") if node.tag in ("text", "tspan", "title") else "")]
    for child in node:
        inner += [html(child), escaped((child.tail or "") if node.tag in ("text", "tspan") else "")]
    return tag(str(node.tag), inner, **texts)


def children(node: Element, start: str) -> Iterator[Element]:
    """Yield the child groups whose id begins so."""
    return (child for child in node if str(child.get("id", "")).startswith(start))


def words(node: Element) -> str:
    """Return all text of a group on one line; of a power of ten, ``1e-2``."""
    found = []
    for text in node.iter("text"):
        if power := POWER.fullmatch(_formula(text)):
            found.append(f"{power[1]}1e{power[2]}")
        else:
            found.append(" ".join("".join(text.itertext()).split()))
    return " ".join(word for word in found if word).replace("−", "-")


def _formula(text: Element) -> str:
    """Return the letters of a formula, which stand in parts of their own, with ``^`` where one is higher than the last.

    A hyphen is set for every minus.
    """
    found, height = "", ""
    for span in text.iter("tspan"):
        letters, at = "".join(span.itertext()).strip(), span.get("y", "")
        found += f"^{letters}" if found and at != height else letters
        height = at
    return found.replace("−", "-")


def vertices(path: str) -> list[tuple[float, float]]:
    """Return the points of a path of straight lines; none of one with curves."""
    if re.search(r"[CQSTA]", path):
        return []
    found = [float(number) for number in NUMBERS.findall(path)]
    return list(zip(found[::2], found[1::2], strict=False))
