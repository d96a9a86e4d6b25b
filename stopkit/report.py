"""What a run came to: facts side by side, none standing for another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stopkit.files import FileDiff
from stopkit.history import SendableHistory, ToolCall
from stopkit.operation import EffectClass
from stopkit.outcome import Outcome
from stopkit.run import USER_MESSAGES, RunStatus
from stopkit.steer import Steer
from stopkit.stop import Cause, Phase
from stopkit.text import FinalText, PartialText

REMOTE_WORDS: Final = "The local work has ended; a remote action awaits confirmation"


@dataclass(frozen=True, slots=True)
class CallReport:
    """One call of the run.  `effect` is None for a call of no known tool.

    `recorded` is False where the outcome did not reach the store.
    """

    call: ToolCall
    request: int
    key: str
    effect: EffectClass | None
    outcome: Outcome
    recorded: bool
    receipts: tuple[str, ...] = ()
    provider_request_id: str | None = None
    files: FileDiff | None = None


@dataclass(frozen=True, slots=True)
class StopReport:
    """The stop's part.  `phases` are seconds since it was asked for.

    `recorded`: the request is in the store.  `in_time`: all that was told had ended by the
    stop's deadline.
    """

    cause: Cause
    presses: int
    recorded: bool
    forced: bool
    in_time: bool
    phases: tuple[tuple[Phase, float], ...]


@dataclass(frozen=True, slots=True)
class RunReport:
    """A run's end.

    `status` is what the record says: a run whose end could not be written keeps the last status
    that was, and `not_persisted` names what is missing.  `stop` is None where the run finished
    first.  `unconfirmed` names what may still be at work.  `breaches` names code that went on
    after it was told to end.
    """

    run: str
    session: str
    lineage: str
    attempt: int
    status: RunStatus
    durable: bool
    calls: tuple[CallReport, ...]
    stop: StopReport | None
    final_text: FinalText | None
    partial_text: tuple[PartialText, ...]
    steers: tuple[Steer, ...]
    to_reconcile: tuple[str, ...]
    unconfirmed: tuple[str, ...]
    breaches: tuple[str, ...]
    not_persisted: tuple[str, ...]
    history: SendableHistory | None
    failure: str | None
    requests: int

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        return tuple(call.outcome for call in self.calls)

    @property
    def standing(self) -> tuple[CallReport, ...]:
        """The calls whose effects stay: a stop undoes nothing."""
        return tuple(
            call
            for call in self.calls
            if call.effect in ("write", "detached") and call.outcome.effects == "confirmed"
        )

    @property
    def user_message(self) -> str:
        """What a person may be told."""
        if self.status == "needs_reconciliation" and not self.unconfirmed:
            return REMOTE_WORDS
        return USER_MESSAGES[self.status]
