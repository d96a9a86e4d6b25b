"""What a person is told: on standard error, and for `check` a table on standard output."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, TextIO

from stopkit.cli.corpus import Finding, Judged, Reject
from stopkit.cli.sources import FORMS, Form
from stopkit.normalizer.rules import RULES

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_ROWS: Final = 200
"""Rows of a table; `--json` has all."""
_REJECTS: Final = 20
_LENGTH: Final = 400
_WIDTH: Final = 120
"""Columns of a table that goes to a file or a pipe."""

_DONE: Final = {
    "inserted": "result made up",
    "moved": "moved",
    "merged": "merged",
    "rewritten": "rewritten",
    "renamed": "renamed",
    "to_text": "turned into text",
    "removed": "removed",
    "deferred": "put off to the next user turn",
    "delivered": "delivered as data",
    "noted": "note added",
}


def printable(text: str) -> str:
    """The text without what could confuse a terminal, and not endless."""
    if len(text) > _LENGTH:
        text = f"{text[:_LENGTH]}… ({len(text):,} characters)"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def say(text: str) -> None:
    """One line for a person."""
    print(f"stopkit: {printable(text)}", file=sys.stderr)


def say_form(name: str, form: Form, done: Judged) -> None:
    """In which form and for which API the input was taken to be."""
    if form == "jsonl.conversations":
        found = ", ".join(f"{told.times:,} {api}" for api, told in done.apis.items())
        say(f"{name}: {FORMS[form]}: {found or 'none'}")
    for api, told in done.apis.items():
        if form in ("claude_code", "codex"):
            say(f"{name}: {FORMS[form]}, {api}")
            continue
        if form != "jsonl.conversations":
            by = f" (told by {told.found_by})" if told.found_by else ""
            say(f"{name}: {FORMS[form]}, {api}{by}")
        if told.untold:
            which = f"{told.untold:,} of them" if form == "jsonl.conversations" else "it"
            say(f"{name}: nothing in {which} tells the API; taken as {api}, --api names another")


def say_rejects(name: str, rejects: list[Reject], total: int, kept_in: object) -> None:
    """The rows that could not be read; `kept_in` is the file that holds them, if there is one."""
    for reject in rejects[:_REJECTS]:
        say(f"{name}: line {reject.line}: {reject.reason}")
    if total > len(rejects[:_REJECTS]):
        say(f"{name}: and {total - len(rejects[:_REJECTS]):,} more lines")
    if kept_in is not None:
        say(f"{name}: {_plural(total, 'line')} could not be read: {kept_in}")


def show_violations(done: Judged, several: bool, name: str | None = None) -> None:
    """What the API would refuse, on standard output; under the input's name, where one is given."""
    if name is not None and done.tallies:
        print(printable(name))
    if several:
        _show_tallies(sys.stdout, done, "The API's words", lambda f: f.note)
    elif done.findings:
        table = _table("Rule", "Where", "The API's words")
        _fill(table, ((f.rule, f.where, f.note) for f in done.findings), len(done.findings))
        _print(sys.stdout, table)


def show_changes(done: Judged, several: bool) -> None:
    """What was wrong and what was done, on standard error."""
    if several:
        _show_tallies(sys.stderr, done, "What was done", _did)
    elif done.findings:
        table = _table("Rule", "Where", "What was wrong", "What was done")
        said: set[str] = set()
        rows = []
        for found in done.findings:
            wrong = "" if found.rule in said else _says(found.rule)
            said.add(found.rule)
            rows.append((found.rule, found.where, wrong, _did(found)))
        _fill(table, rows, len(rows))
        _print(sys.stderr, table)


def checked_summary(done: Judged, several: bool) -> str:
    if several:
        return (
            f"{_plural(done.conversations, 'conversation')}, {done.damaged:,} with violations, "
            f"{done.unsendable:,} not sendable"
        )
    count = len(done.findings)
    if done.unsendable:
        sendable = "not sendable"
    else:
        sendable = "sendable"
    return f"{_plural(count, 'violation') if count else 'no violation'}; {sendable}"


def normalized_summary(done: Judged, several: bool) -> str:
    if several:
        return (
            f"{_plural(done.conversations, 'conversation')}, {done.damaged:,} repaired, "
            f"{done.unsendable:,} not sendable yet"
        )
    count = len(done.findings)
    state = "sendable" if not done.unsendable else "not sendable yet"
    if done.pending:
        state += f": still at work: {', '.join(done.pending[:10])}"
    return f"{_plural(count, 'change') if count else 'nothing to repair'}; {state}"


def _show_tallies(stream: TextIO, done: Judged, words: str, tell: _Tell) -> None:
    if not done.tallies:
        return
    table = _table("Rule", "Times", "What was wrong", f"{words} (the first)", "Where (the first)")
    rows = [
        (found.rule, f"{times:,}", _says(found.rule), tell(found), found.where)
        for times, found in sorted(done.tallies.values(), key=lambda row: -row[0])
    ]
    _fill(table, rows, len(rows))
    _print(stream, table)


if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    _Tell: TypeAlias = Callable[[Finding], str]


def _did(found: Finding) -> str:
    return f"{_DONE.get(found.kind, found.kind)}: {found.note}"


def _says(rule: str) -> str:
    return RULES[rule].says if rule in RULES else ""


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def console(stream: TextIO) -> Console:
    """Colour and width only where a terminal has them."""
    from rich.console import Console

    terminal = stream.isatty()
    return Console(
        file=stream,
        force_terminal=terminal,
        no_color=None if terminal else True,
        width=None if terminal else _WIDTH,
        highlight=False,
        markup=False,
        emoji=False,
    )


def _table(*headers: str) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for header in headers:
        table.add_column(
            header, style="bold" if header == "Rule" else "", overflow="fold", min_width=4
        )
    return table


def _fill(table: Table, rows: Iterable[tuple[str, ...]], total: int) -> None:
    from rich.text import Text

    for number, row in enumerate(rows):
        if number == _ROWS:
            table.add_row(Text("…"), Text(f"and {total - _ROWS:,} more; --json has all"))
            break
        table.add_row(*(Text(printable(cell)) for cell in row))


def _print(stream: TextIO, table: Table) -> None:
    console(stream).print(table)
