"""The stop as a plan: phases in one order, a cause that is set once, absolute deadlines.

    close     nothing new starts; queued calls become not_started
    record    the request, its cause and its event, in one transaction
    tell      the signal's holders are told; work that may be cut is cut
    settle    bounded: late results are waited for, then what is left is cut
    account   an outcome for every call; what is not known stays unknown
    complete  the history becomes sendable
    end       the run's end is recorded

Pure: a plan is a frozen value, and every method takes the clock's reading.  Readings are those of
one monotonic clock, in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias, get_args

from stopkit.errors import IllegalTransition
from stopkit.operation import EffectClass

CauseKind: TypeAlias = Literal["user", "deadline", "policy", "operator", "parent", "shutdown"]
Phase: TypeAlias = Literal["close", "record", "tell", "settle", "account", "complete", "end"]
Treatment: TypeAlias = Literal["cut", "grace", "keep"]

CAUSE_KINDS: Final[tuple[CauseKind, ...]] = get_args(CauseKind)
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)

SHORTENED_GRACE: Final = 0.5
"""Seconds that a second press leaves of the grace, at most."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Who asked for a stop, when (seconds since the epoch) and in which words."""

    kind: CauseKind
    at: float
    actor: str | None = None
    words: str | None = None

    def for_child(self, at: float) -> Cause:
        """The cause a run gets when the run that it belongs to is stopped for this one."""
        told = f"the parent run was stopped: {self.kind}"
        return Cause("parent", at, self.actor, f"{told}: {self.words}" if self.words else told)


@dataclass(frozen=True, slots=True, kw_only=True)
class StopPolicy:
    """How long each phase of a stop may take, in seconds, and what it reaches.

    `ack_wait`: a provider's acknowledgement, and the record.  `grace`: work that may still bring
    its real result.  `verify_wait`: the end of what was cut.  `output_wait`: output after that,
    and the record of the end.  `deadline` bounds the whole; their sum where it is None.

    `queued`: steers not yet sent are handed back (`drop`) or wait for the next attempt (`keep`).
    `background`: detached tools are stopped like all others, or left at work and reported.
    """

    ack_wait: float = 2.0
    grace: float = 5.0
    verify_wait: float = 2.0
    output_wait: float = 0.5
    queued: Literal["drop", "keep"] = "drop"
    background: Literal["stop", "keep"] = "stop"
    deadline: float | None = None

    def __post_init__(self) -> None:
        for name in ("ack_wait", "grace", "verify_wait", "output_wait"):
            seconds = getattr(self, name)
            # The comparison is also False for NaN, which no timer may be given.
            if not 0 <= seconds < float("inf"):
                raise ValueError(f"{name} is a finite number of seconds, not {seconds!r}")
        if self.deadline is not None and not 0 < self.deadline < float("inf"):
            raise ValueError(f"deadline is a finite number of seconds, not {self.deadline!r}")

    @property
    def total(self) -> float:
        if self.deadline is not None:
            return self.deadline
        return self.ack_wait + self.grace + self.verify_wait + self.output_wait


@dataclass(frozen=True, slots=True)
class StopPlan:
    """Where a stop is, and by when each part of it ends.  `begin` makes one.

    `cause` is None where the run came to its own end, and only its leftovers are settled.
    """

    cause: Cause | None
    policy: StopPolicy
    asked_at: float
    grace_until: float
    verify_until: float
    deadline_at: float
    presses: int = 1
    entered: tuple[tuple[Phase, float], ...] = ()

    @classmethod
    def begin(cls, cause: Cause | None, policy: StopPolicy, now: float) -> StopPlan:
        deadline_at = now + policy.total
        # With a deadline below the phases' sum, the last phases keep their share of what there is:
        # a grace that ate it all would leave nothing to record with.
        tail = min(policy.output_wait, policy.total / 4)
        verify_until = min(now + policy.grace + policy.verify_wait, deadline_at - tail)
        grace_until = min(now + policy.grace, verify_until - min(policy.verify_wait, tail))
        return cls(
            cause,
            policy,
            now,
            max(now, grace_until),
            max(now, verify_until),
            deadline_at,
            1,
            (("close", now),),
        )

    @property
    def phase(self) -> Phase:
        return self.entered[-1][0]

    @property
    def forced(self) -> bool:
        return self.presses >= 3

    def enter(self, phase: Phase, now: float) -> StopPlan:
        """The plan in its next phase.

        Raises:
            IllegalTransition: for any phase but the next one.
        """
        at = PHASES.index(self.phase)
        if at + 1 >= len(PHASES) or PHASES[at + 1] != phase:
            raise IllegalTransition(f"a stop in {self.phase} cannot go to {phase}")
        return replace(self, entered=(*self.entered, (phase, now)))

    def press(self, now: float) -> StopPlan:
        """The plan after one more request: the second shortens the grace, the third ends it.

        No press ever moves a time backwards into the future; the fourth and later change nothing.
        """
        presses = self.presses + 1
        if presses > 3:
            return replace(self, presses=presses)
        left = 0.0 if presses == 3 else min(SHORTENED_GRACE, self.policy.grace)
        verify = (
            min(self.policy.verify_wait, SHORTENED_GRACE)
            if presses == 3
            else self.policy.verify_wait
        )
        grace_until = min(self.grace_until, now + left)
        verify_until = min(self.verify_until, max(now, grace_until) + verify)
        deadline_at = min(self.deadline_at, max(now, verify_until) + self.policy.output_wait)
        return replace(
            self,
            presses=presses,
            grace_until=grace_until,
            verify_until=verify_until,
            deadline_at=deadline_at,
        )


def treatment(effect: EffectClass, *, dispatched: bool, policy: StopPolicy) -> Treatment:
    """What a stop does, at first, to a call that is at work.

    `cut`: cancelled at once.  `grace`: it may still bring its result, then it is cut.  `keep`: it
    is left at work and reported.

    A write that passed its commit point has its effect or not whether or not anybody listens:
    cutting it could only lose the reply that tells which.
    """
    if effect == "detached" and policy.background == "keep":
        return "keep"
    if effect == "cleanup" or (effect in ("write", "detached") and dispatched):
        return "grace"
    return "cut"
