"""What is known of a unit: facts side by side, none standing for another.

`after` is in seconds since the unit's start, `start` (of a process) in clock ticks since boot.
Every value here is frozen.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from pydantic import BaseModel, JsonValue

from stopkit.outcome import Outcome
from stopkit.stop import Cause

UnitKind: TypeAlias = Literal["process", "callable", "http", "mcp"]

Containment: TypeAlias = Literal["cgroup", "subreaper", "group"]
"""What held a process tree.

`cgroup`: a cgroup v2 and a subreaper; the kernel keeps the members.  `subreaper`: nothing leaves
the tree by forking or by a new session.  `group`: a session and a poll of the tree, best effort: a
daemon that detaches between two polls gets away.
"""

Emptiness: TypeAlias = Literal["yes", "no", "unknown"]
SurvivorReason: TypeAlias = Literal["not_permitted", "uninterruptible", "deadline"]


@dataclass(frozen=True, slots=True)
class Exit:
    """How a leader ended: by `code`, or by `signal`.  Neither is a business outcome."""

    code: int | None
    signal: int | None
    after: float


@dataclass(frozen=True, slots=True)
class SignalSent:
    """One pass: the processes that got a signal, and those that the kernel protected from it.

    `count` is how many got it; `pids` names them, up to a thousand in the whole report.
    """

    signal: int
    after: float
    count: int
    pids: tuple[int, ...]
    refused: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Member:
    pid: int
    start: int
    uid: int | None
    name: str


@dataclass(frozen=True, slots=True)
class Survivor:
    """A process that outlives its unit.

    `not_permitted`: the kernel forbids the signal.  `uninterruptible`: killed, once the kernel
    lets it go.  `deadline`: still there when the time to verify had passed.
    """

    pid: int
    start: int
    uid: int | None
    name: str
    reason: SurvivorReason


@dataclass(frozen=True, slots=True)
class OutputFacts:
    """One stream.  `total` bytes were read; `kept` are in memory, the newest ones.

    `spilled` are in the file `spill`, the oldest ones; `dropped` are in neither.  `complete`: its
    end was read.
    """

    name: Literal["stdout", "stderr"]
    total: int
    kept: int
    spilled: int
    dropped: int
    complete: bool
    spill: str | None = None
    spill_error: str | None = None


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """A process unit's part.

    Three facts apart: `exit` (the leader's), `output_complete`, `descriptors_released` (nobody
    holds the writing end of our pipes any more; `holders` names who does).

    `leader_signalled`: a signal of ours reached the leader before its end.
    `verified_empty`: `yes` only where the kernel said that nothing of the tree is left.
    `members_seen` counts what the stop saw; `members` names the first of them.  `marked` counts
    processes outside the tree that bore its marker.  `guards_lost` names what was killed of our
    own.  `detached`: it was started to outlive its host.
    """

    argv: tuple[str, ...]
    marker: str
    boot_id: str
    pid: int
    start: int
    containment: Containment
    detached: bool
    exit: Exit | None
    leader_signalled: bool
    signals: tuple[SignalSent, ...]
    members_seen: int
    members: tuple[Member, ...]
    verified_empty: Emptiness
    survivors: tuple[Survivor, ...]
    output: tuple[OutputFacts, ...]
    output_complete: bool
    descriptors_released: bool
    holders: tuple[Member, ...] = ()
    marked: int = 0
    guards_lost: tuple[Literal["warden", "broker"], ...] = ()

    @property
    def forced(self) -> bool:
        """True where something had to be killed."""
        return any(sent.signal == 9 and sent.count for sent in self.signals)


@dataclass(frozen=True, slots=True)
class CallableFacts:
    """A function's part.  `still_running`: it goes on; a thread cannot be killed."""

    function: str
    in_thread: bool
    cancelled: bool
    still_running: bool


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request of an HTTP unit and what came of it.  `error` is the client's own."""

    purpose: Literal["operation", "status", "cancel"]
    method: str
    url: str
    after: float
    bytes_sent: bool
    status: int | None = None
    error: str | None = None
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class HttpFacts:
    """An HTTP unit's part.  `replayed`: the service answered from its memory of the key."""

    operation_id: str
    key: str | None
    exchanges: tuple[Exchange, ...]
    replayed: bool
    cancel_sent: bool
    cancel_observed: bool
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class McpFacts:
    """An MCP unit's part.  `cancel_sent` and `cancel_observed` are two facts.

    `dialect`: how this session's protocol version cancels.  `observed` says by which evidence.
    """

    tool: str
    protocol_version: str
    dialect: Literal["notification", "close_stream"]
    request_id: str | None
    sent: bool
    cancel_sent: bool
    cancel_sent_after: float | None
    cancel_observed: bool
    observed: str | None = None
    answered: bool = False


@dataclass(frozen=True, slots=True)
class Late:
    """Something that arrived after the unit's end was accounted for.  Kept, never dropped."""

    what: str
    after: float
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class UnitReport:
    """What became of one unit; exactly one of the four parts belongs to its `kind`.

    `cause` is None where it came to its own end.  `unconfirmed` says in words what may go on.
    """

    id: str
    kind: UnitKind
    key: str | None
    outcome: Outcome
    cause: Cause | None
    duration: float
    process: ProcessFacts | None = None
    call: CallableFacts | None = None
    http: HttpFacts | None = None
    mcp: McpFacts | None = None
    late: tuple[Late, ...] = ()
    unconfirmed: tuple[str, ...] = ()
    not_persisted: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, JsonValue]:
        """Plain JSON values."""
        return cast("dict[str, JsonValue]", _plain(self))

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), ensure_ascii=True, separators=(",", ":"))


def _plain(value: object) -> JsonValue:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, tuple):
        return [_plain(item) for item in cast("tuple[object, ...]", value)]
    if isinstance(value, BaseModel):
        return cast(JsonValue, value.model_dump(mode="json", exclude_none=True))
    return cast(JsonValue, value)
