"""What is asked of every conversation, and what became of one text or of many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from stopkit.history import Api
from stopkit.outcome import Evidence

Edit: TypeAlias = tuple[int, int, bytes]
"""Bytes `[start:stop]` of the text are to become these."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is done with every conversation."""

    action: Literal["check", "normalize"]
    api: Api | None = None
    field: str | None = None
    live: Literal["close", "keep"] = "close"
    evidence: Mapping[str, Evidence] | None = None
    """The caller's word; it wins over what a conversation carries."""
    records: bool = False
    """Make the `--json` objects."""
    edits: bool = True
    """Make the repaired text."""
    account: bool = True
    """Collect what was found, for a person."""
    keep_rejects: bool = True
    """Rows that cannot be read stay in the text."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A violation or a change, in words for a person."""

    rule: str
    kind: str
    """The kind of change, or the scope of a violation."""
    where: str
    note: str


@dataclass(frozen=True, slots=True)
class Reject:
    """A row that could not be read.  `line` counts from 1."""

    line: int
    reason: str
    text: bytes


@dataclass(slots=True)
class Told:
    """Conversations of one API: how many, how many of them taken for it untold, and what told."""

    times: int = 0
    untold: int = 0
    found_by: str = ""

    def add(self, times: int, untold: int, found_by: str) -> None:
        self.times += times
        self.untold += untold
        self.found_by = self.found_by or found_by


@dataclass(slots=True)
class Judged:
    """What became of a text, or of several put together."""

    lines: int = 0
    conversations: int = 0
    damaged: int = 0
    """Conversations with a violation, or a change."""
    unsendable: int = 0
    edits: list[Edit] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)
    body: bytes | None = None
    """The whole output, where it is no edited form of the text."""
    records: bytes = b""
    apis: dict[Api, Told] = field(default_factory=dict)
    """How many conversations are in which API, and what told it."""
    tallies: dict[tuple[str, str], tuple[int, Finding]] = field(default_factory=dict)
    """By rule and kind: how many, and the first."""
    findings: list[Finding] = field(default_factory=list)
    """Each one; for single conversations only."""
    hints: list[str] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    error: str | None = None
    """Why a single conversation could not be read."""

    def count(self, finding: Finding) -> None:
        key = (finding.rule, finding.kind)
        times, first = self.tallies.get(key, (0, finding))
        self.tallies[key] = (times + 1, first)

    def add(self, later: Judged) -> None:
        """Join what became of the text behind this one; texts and edits are the caller's."""
        self.lines += later.lines
        self.conversations += later.conversations
        self.damaged += later.damaged
        self.unsendable += later.unsendable
        for api, told in later.apis.items():
            self.apis.setdefault(api, Told()).add(told.times, told.untold, told.found_by)
        for key, (times, finding) in later.tallies.items():
            before, first = self.tallies.get(key, (0, finding))
            self.tallies[key] = (before + times, first)
        self.findings += later.findings
        self.hints += later.hints
        self.pending += later.pending
        self.notes += later.notes
        self.error = self.error or later.error
