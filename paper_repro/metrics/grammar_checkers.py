"""Two engines of the grammar quality score beside the paper's rules: LanguageTool and Harper.

Ours, not the paper's: spelling is judged by the same checker, and every other finding has severity 1, because the
paper's weights belong to its own ten families.  Their scores stand in columns of their own.
"""

import importlib
import subprocess
from typing import Any

from paper_repro.metrics.diversity import words_of
from paper_repro.metrics.grammar import Finding, Inspection
from paper_repro.metrics.quantities import Quantity

SEVERITY = 1.0
SERVER = "java -cp languagetool-server.jar org.languagetool.server.HTTPServer --port 8081"
NEEDS_LOCAL = (
    "LanguageTool needs Java 17 or newer on the PATH, and downloads itself (about 250 MB) on first use; without a "
    "network give url= of a running server (`" + SERVER + "`)"
)


class MissingCheckerError(RuntimeError):
    """A grammar checker is not installed, cannot start or does not answer; the message says what to do."""


class LanguageTool:
    """LanguageTool through language_tool_python: started locally, or a running server.  Close it, or use
    ``contextlib.closing``.

    Args:
        url: of a server, for example "http://localhost:8081"; None starts one on this machine.
        language: LanguageTool's code, for example "en-US" or "en-GB".

    Raises:
        MissingCheckerError: no Java, an old one, no network for the download, an empty installation, a server that does
            not start or not answer, or that is not LanguageTool; also from ``inspect``, if it stops answering.
        ValueError: a language that the server does not know.
    """

    quantity = Quantity("GQS (LanguageTool)", "", higher_is_better=True)

    def __init__(self, url: str | None = None, language: str = "en-US") -> None:
        import language_tool_python as client

        self.url = url
        try:
            self._tool: Any = client.LanguageTool(language, remote_server=url)
        except (Exception, SystemExit) as error:
            if type(error) is ValueError and "language" in str(error):
                raise ValueError(f"language must be one that LanguageTool knows, got {language!r}: {error}") from error
            raise self._unavailable(error) from error

    def inspect(self, text: str) -> Inspection:
        words_of(text)
        findings, misspelt = [], set()
        try:
            matches = self._tool.check(text)
        except (Exception, SystemExit) as error:
            raise self._unavailable(error) from error
        for match in matches:
            found = text[match.offset : match.offset + match.error_length]
            if match.rule_issue_type == "misspelling":
                misspelt.add(found.lower())
            else:
                findings.append(Finding(match.category, found, SEVERITY))
        return Inspection(findings, frozenset(misspelt))

    def close(self) -> None:
        """Stop the local server; a server that was given is left alone."""
        self._tool.close()

    def _unavailable(self, error: BaseException) -> MissingCheckerError:
        """Return what went wrong, from the many ways in which the client says so, and what mends it."""
        detail = f"{type(error).__name__}: {error}"[:300]
        if self.url is not None:
            return MissingCheckerError(
                f"{self.url} does not answer as a LanguageTool server ({detail}): check the address, or start one with "
                f"`{SERVER}`"
            )
        return MissingCheckerError(f"{_cause(error)} ({detail}): {NEEDS_LOCAL}")


def _cause(error: BaseException) -> str:
    """Say in words what an exception of the client means where the server is to run on this machine."""
    if isinstance(error, ModuleNotFoundError):
        return "no Java was found"
    if isinstance(error, SystemError):
        return "the Java that was found is too old"
    if isinstance(error, SystemExit | subprocess.SubprocessError):
        return "the Java that was found does not tell its version"
    if isinstance(error, FileNotFoundError):
        return "LanguageTool's folder holds no installation: remove it, so that it is downloaded anew"
    if isinstance(error, OSError):
        return "LanguageTool could not be downloaded"
    from language_tool_python.utils import get_language_tool_download_path

    downloaded = get_language_tool_download_path() / "LanguageTool-*"
    return (
        f"LanguageTool's server did not start; if {downloaded} is not whole, remove it, so that it is downloaded anew"
    )


class Harper:
    """Harper through harper-py: rule-based, on this machine, without Java or network; the extra ``[grammar]``.

    Raises:
        MissingCheckerError: harper-py is not installed.
    """

    quantity = Quantity("GQS (Harper)", "", higher_is_better=True)

    def __init__(self) -> None:
        try:
            harper = importlib.import_module("harper")
            self._linter: Any = harper.Linter()
        except (ImportError, AttributeError) as error:  # another package is called harper too
            raise MissingCheckerError(
                f"harper-py is not installed ({error}): run `pip install harper-py`, or choose another engine"
            ) from error

    def inspect(self, text: str) -> Inspection:
        words_of(text)
        findings, misspelt = [], set()
        for lint in self._linter.lint(text, language="plaintext"):
            if lint.lint_kind == "Spelling":
                misspelt.add(lint.problem_text.lower())
            else:
                findings.append(Finding(lint.lint_kind, lint.problem_text, SEVERITY))
        return Inspection(findings, frozenset(misspelt))
