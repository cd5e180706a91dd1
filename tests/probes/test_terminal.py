import io

import pytest

from paper_repro.probes.terminal import Shader, wants_color


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colors_are_for_terminals_that_nobody_asked_to_be_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "")
    assert wants_color(Terminal()) and not wants_color(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_color(Terminal())
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not wants_color(Terminal())


def test_low_values_are_green_and_high_ones_purple() -> None:
    shade = Shader(-1.0, 3.0, colored=True)
    assert shade("a", -1.0) == "\x1b[48;5;28;38;5;231ma\x1b[0m"
    assert shade("a", 3.0) == "\x1b[48;5;54;38;5;231ma\x1b[0m"
    assert shade("a", 1.0) == "\x1b[48;5;255;38;5;16ma\x1b[0m" == Shader(1.0, 1.0, colored=True)("a", 1.0)
    assert Shader(-1.0, 3.0, colored=False)("a", 1.0) == "a"
