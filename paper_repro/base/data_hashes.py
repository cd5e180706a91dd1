"""The SHA-256 of a data file as it enters ids."""

import contextlib
import json
from pathlib import Path
from typing import Any

from paper_repro.base.files import sha256_of_file
from paper_repro.base.identity import rules

_TOKENIZER = ("fingerprint", "vocabulary_size", "end_of_text")


def data_hash(path: Path) -> str:
    """Return the SHA-256 of a data file; of a manifest with the tokens of published records, the published one.

    The published manifests name versions of Python and of packages, which do not change the tokens.
    """
    return _published(_tokens(path)) or sha256_of_file(path)


def other_text(path: Path) -> str:
    """Say that a manifest of the published records' kind of text and vocabulary has other tokens; empty if not."""
    tokens, text = _tokens(path), rules().published_text
    sizes = {known["tokenizer"]["vocabulary_size"] for known in text.manifests.values()}
    if tokens.get("name") != text.name or tokens["tokenizer"]["vocabulary_size"] not in sizes or _published(tokens):
        return ""
    return (
        f"{path}: not the text of the published results, which is the {text.name} of {text.of}; results on it are not "
        "comparable with the published ones"
    )


def _published(tokens: dict[str, Any]) -> str | None:
    """Return the SHA-256 of the published manifest with these tokens."""
    known = rules().published_text.manifests.items()
    return next((digest for digest, one in known if one.items() <= tokens.items()), None) if tokens else None


def _tokens(path: Path) -> dict[str, Any]:
    """Return the tokenizer, the shards and the source's name of a manifest; empty for any other file."""
    if path.suffix == ".json":
        with contextlib.suppress(ValueError, KeyError, TypeError):
            content = json.loads(path.read_bytes())
            return {
                "name": content["source"]["name"],
                "tokenizer": {key: content["tokenizer"][key] for key in _TOKENIZER},
                "shards": [[shard["split"], shard["sha256"]] for shard in content["shards"]],
            }
    return {}
