"""What became of one tool call, in one vocabulary for code, JSON and tables.

An `Outcome` is exactly one of six facts, told apart by `status`:

    succeeded     the tool ran to its end; `output` is its real result
    failed        the tool ran and reported an error of its own (its own timeout included)
    denied        somebody refused the call; nothing ran
    not_started   nothing ran, and nobody refused it (queue flushed, call incomplete, ...)
    stopped       it began, and we ended it
    unknown       nobody knows; the call may have run in whole, in part or not at all

`Evidence` is what a caller knows about a call before its outcome is settled: any outcome, or
`Running` (still at work) or `Placeholder` (the stored result only stands for one that had not
arrived).  Without evidence an outcome is `unknown`: never "cancelled", never "the user refused".
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Status: TypeAlias = Literal["succeeded", "failed", "denied", "not_started", "stopped", "unknown"]
"""The six outcomes."""

Effects: TypeAlias = Literal["none", "unverified", "confirmed", "confirmed_absent"]
"""What is known about a call's effects on the world.

`none`: nothing ran.  `unverified`: there may be some.  `confirmed`: they were seen, or the tool
said so itself.  `confirmed_absent`: somebody looked, and there are none.
"""

STATUSES: Final[tuple[Status, ...]] = (
    "succeeded",
    "failed",
    "denied",
    "not_started",
    "stopped",
    "unknown",
)


class _Fact(BaseModel):
    """What every outcome and every piece of evidence may carry."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    reason: str | None = None
    """Why, in words to pass on to a model or a person."""
    cause: str | None = None
    """What brought it about, such as a stop's cause: `user`, `deadline`, `policy`, ..."""
    output: str | None = None
    """What the tool gave back: all of it, or what there was when it ended."""
    key: str | None = None
    """The operation's idempotency key, where there is one."""
    evidence: tuple[str, ...] = ()
    """What the outcome rests on, each a short statement of a recorded fact."""


class Succeeded(_Fact):
    """The tool ran to its end and gave `output`."""

    status: Literal["succeeded"] = "succeeded"
    effects: Literal["unverified", "confirmed"] = "confirmed"


class Failed(_Fact):
    """The tool ran and reported an error of its own.  Part of its work may have been done."""

    status: Literal["failed"] = "failed"
    effects: Effects = "unverified"
    exit_code: int | None = None


class Denied(_Fact):
    """The call was refused, by `by` where that is known, with the words in `reason`."""

    status: Literal["denied"] = "denied"
    effects: Literal["none"] = "none"
    by: str | None = None


class NotStarted(_Fact):
    """Nothing ran and nobody refused it; `reason` says why."""

    status: Literal["not_started"] = "not_started"
    effects: Literal["none"] = "none"


class Stopped(_Fact):
    """The call began and was ended by us before it could finish."""

    status: Literal["stopped"] = "stopped"
    effects: Effects = "unverified"
    after: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Seconds from its start to its end."""
    exit_code: int | None = None
    signal: int | None = None


class Unknown(_Fact):
    """Nobody knows what became of the call; `check` says how to find out, where that is known."""

    status: Literal["unknown"] = "unknown"
    effects: Literal["unverified", "confirmed", "confirmed_absent"] = "unverified"
    check: str | None = None


class Running(_Fact):
    """Evidence: the call is at work now.  Its history must not be closed over it."""

    status: Literal["running"] = "running"


class Placeholder(_Fact):
    """Evidence: the stored result only stands for one that had not arrived."""

    status: Literal["placeholder"] = "placeholder"


Outcome: TypeAlias = Succeeded | Failed | Denied | NotStarted | Stopped | Unknown
Evidence: TypeAlias = Outcome | Running | Placeholder


# The adapters are built when first asked for: building them costs more than importing all the rest.


@cache
def _outcomes() -> TypeAdapter[Outcome]:
    from pydantic import TypeAdapter

    return TypeAdapter(Annotated[Outcome, Field(discriminator="status")])


@cache
def _evidences() -> TypeAdapter[Evidence]:
    from pydantic import TypeAdapter

    return TypeAdapter(Annotated[Evidence, Field(discriminator="status")])


def parse_outcome(value: Outcome | Mapping[str, object]) -> Outcome:
    """An `Outcome` from itself or from its plain-dict form.

    Raises:
        pydantic.ValidationError: for an unknown status, an unknown field or a wrong type.
    """
    return _outcomes().validate_python(value)


def parse_evidence(value: Evidence | Mapping[str, object]) -> Evidence:
    """An `Evidence` from itself or from its plain-dict form, as `parse_outcome`."""
    return _evidences().validate_python(value)
