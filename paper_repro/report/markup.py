"""HTML from Python: whatever is no ``Markup`` is text and is escaped, so no note or label can become a tag."""

import html
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

VOID = frozenset(("br", "hr", "img", "input", "link", "meta"))
"""Elements without content, which have no end tag."""
SPECIAL = re.compile("[&<>]")


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def escaped(value: Any) -> Markup:
    """Return a value as HTML: markup stays, None is nothing, an iterable is joined, anything else is text."""
    if isinstance(value, Markup):
        return value
    if isinstance(value, str):
        return Markup(html.escape(value, quote=False)) if SPECIAL.search(value) else Markup(value)
    if value is None:
        return Markup()
    if isinstance(value, (list, tuple, Iterator)):
        return Markup("".join(map(escaped, value)))
    return Markup(html.escape(str(value), quote=False))


def tag(name: str, /, *children: Any, **attributes: Any) -> Markup:
    """Return an element.

    Args:
        name: of the element.
        children: what it contains, see ``escaped``.
        attributes: ``class_`` stands for class, ``data_x`` for data-x; None and False leave one out, True gives it
            without a value.
    """
    # Not "in (None, False)": 0 is a value.
    there = ((key, value) for key, value in attributes.items() if value is not None and value is not False)
    given = "".join(_attribute(key, value) for key, value in there)
    if name in VOID:
        return Markup(f"<{name}{given}>")
    return Markup(f"<{name}{given}>{escaped(children)}</{name}>")


def _attribute(key: str, value: Any) -> str:
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{html.escape(str(value), quote=True)}"'


def address(path: str) -> str:
    """Return a relative path as the address of a link: ``a b#c`` is ``a%20b%23c``."""
    return quote(path, safe="/._-+")
