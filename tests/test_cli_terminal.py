"""What only a terminal gets: colour, and a progress bar on long work."""

from __future__ import annotations

import io
import sys
from unittest import mock

import pytest

from stopkit.cli.corpus import Finding, Judged
from stopkit.cli.progress import Progress
from stopkit.cli.report import printable, show_violations

LONG = 1 << 30


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    return monkeypatch


def _bar(stream: io.StringIO, total: int, files: int) -> str:
    with mock.patch.object(sys, "stderr", stream), Progress(total, files) as progress:
        progress.advance(total // 2)
        return stream.getvalue()


@pytest.mark.usefixtures("environment")
def test_long_work_has_a_bar_on_a_terminal_only() -> None:
    assert "GB" in _bar(Terminal(), LONG, 1)
    assert _bar(Terminal(), 1000, 1) == ""
    assert _bar(Terminal(), 1000, 1000) != ""
    assert _bar(io.StringIO(), LONG, 1000) == ""


def _table(stream: io.StringIO) -> str:
    judged = Judged(findings=[Finding("ANT-PAIR-1", "prefix", "messages.1", "no result")])
    with mock.patch.object(sys, "stdout", stream):
        show_violations(judged, several=False)
    return stream.getvalue()


def test_colour_and_weight_are_for_a_terminal(environment: pytest.MonkeyPatch) -> None:
    assert "\x1b[" in _table(Terminal())
    plain = _table(io.StringIO())
    assert "\x1b" not in plain
    assert "ANT-PAIR-1" in plain
    environment.setenv("FORCE_COLOR", "1")
    assert _table(io.StringIO()) == plain
    environment.setenv("NO_COLOR", "1")
    # Colours are numbers from 30 on; weight is not a colour.
    assert "\x1b[3" not in _table(Terminal())


def test_what_is_shown_is_printable_and_not_endless() -> None:
    assert printable("a\x1b[2Jb\ud800\u202e\n") == "a\\x1b[2Jb\\ud800\\u202e\\n"
    assert printable("é 漢") == "é 漢"
    assert printable("x" * 1_000_000).endswith("(1,000,000 characters)")
    assert len(printable("x" * 1_000_000)) < 500
