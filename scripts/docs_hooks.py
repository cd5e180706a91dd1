"""What mkdocs does with the pages of docs/ before it renders them: a hook that mkdocs.yml names, no command."""

import re
from typing import Any

LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)[^)]*\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return the page with each link out of docs/ as the name of a file: the site does not hold it."""
    depth = page.file.src_uri.count("/")

    def named(match: re.Match[str]) -> str:
        text, target = match[1], match[2]
        ups = target.count("../")
        if ups <= depth:
            return match[0]
        path = target.removeprefix("../" * ups)
        return f"`{path}`" if text.strip("`") == path else f"{text} (`{path}` in the repository)"

    return LINK.sub(named, markdown)
