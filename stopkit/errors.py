"""Everything stopkit raises.

    StopkitError                base of all
      StopRequested             the door is closed: the run is being stopped
      IllegalTransition         a run, a steer or a stop was asked to move where it may not
      RunNotFound               no run of this id in the store
      RunConflict               the record has moved on since it was read
      StoreError                the store could not do its part
        NotRecorded             a write did not reach the store; nothing it would have told is true
        SchemaMismatch          the file was made by a newer version
        StoreClosed             the store was closed
      ToolRegistrationError     a tool's declaration leaves out what must be said aloud
      ToolFailed                raised by a tool: the work was refused or went wrong, for certain
      KeyConflict               an idempotency key was used before, for other arguments
      ReconcileRequired         old work cannot go on while an effect is unverified
      DecisionRefused           a person's decision does not fit what is known
      ApprovalNotPending        the call does not wait for an approval
      CleanupOnly               clean-up may save, release and verify, not go on
      PartialTextError          partial text was about to be passed on as final
      RestoreRefused            a file was changed by somebody else since
      InsideTheRun              a run's own body asked to wait for its own end

Each carries `code`, `retry_safe`, `run_status` and `correlation_id`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from stopkit.run import RunStatus
    from stopkit.stop import Cause


@dataclass(frozen=True, slots=True)
class ErrorEnvelope:
    """An error as a client may see it; `to_json` is its wire form.

    `code` is stable.  `retry_safe` is True only where asking again cannot repeat an effect.
    """

    code: str
    message: str
    retry_safe: bool
    run_status: RunStatus | None
    correlation_id: str | None

    def to_dict(self) -> dict[str, str | bool | None]:
        return {
            "code": self.code,
            "message": self.message,
            "retry_safe": self.retry_safe,
            "run_status": self.run_status,
            "correlation_id": self.correlation_id,
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), ensure_ascii=True, separators=(",", ":"))


class StopkitError(Exception):
    """Base of all errors.  `correlation_id` is the run's id wherever a run is concerned."""

    code: ClassVar[str] = "stopkit_error"
    retry_safe: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        run_status: RunStatus | None = None,
        correlation_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.run_status: RunStatus | None = run_status
        self.correlation_id = correlation_id

    def envelope(self) -> ErrorEnvelope:
        return ErrorEnvelope(
            self.code, str(self), self.retry_safe, self.run_status, self.correlation_id
        )


class StopRequested(StopkitError):
    """The run is being stopped: nothing new starts.  `where` names the check that refused.

    Let it pass through, as a CancelledError: the scope that it belongs to takes it in.
    """

    code: ClassVar[str] = "stop_requested"

    def __init__(
        self,
        message: str = "a stop was requested",
        *,
        cause: Cause | None = None,
        where: str = "",
        run_status: RunStatus | None = None,
        correlation_id: str | None = None,
    ) -> None:
        super().__init__(message, run_status=run_status, correlation_id=correlation_id)
        self.cause = cause
        self.where = where


class IllegalTransition(StopkitError):
    code: ClassVar[str] = "illegal_transition"


class RunNotFound(StopkitError):
    code: ClassVar[str] = "run_not_found"


class RunConflict(StopkitError):
    """Read the record again, then decide again."""

    code: ClassVar[str] = "run_conflict"
    retry_safe: ClassVar[bool] = True


class StoreError(StopkitError):
    code: ClassVar[str] = "store_error"


class NotRecorded(StoreError):
    code: ClassVar[str] = "not_recorded"
    retry_safe: ClassVar[bool] = True


class SchemaMismatch(StoreError):
    code: ClassVar[str] = "schema_mismatch"


class StoreClosed(StoreError):
    code: ClassVar[str] = "store_closed"


class ToolRegistrationError(StopkitError):
    code: ClassVar[str] = "tool_registration"


class ToolFailed(StopkitError):
    """Raise it in a tool that knows its work went wrong.

    `no_effects=True` says that the service vouches for having done nothing.  Any other exception
    from a write that passed its commit point leaves the outcome unknown.
    """

    code: ClassVar[str] = "tool_failed"

    def __init__(
        self,
        message: str,
        *,
        no_effects: bool = False,
        run_status: RunStatus | None = None,
        correlation_id: str | None = None,
    ) -> None:
        super().__init__(message, run_status=run_status, correlation_id=correlation_id)
        self.no_effects = no_effects


class KeyConflict(StopkitError):
    code: ClassVar[str] = "key_conflict"


class ReconcileRequired(StopkitError):
    """`keys` are the operations whose effects nobody knows."""

    code: ClassVar[str] = "reconcile_required"

    def __init__(
        self,
        message: str,
        *,
        keys: Sequence[str] = (),
        run_status: RunStatus | None = None,
        correlation_id: str | None = None,
    ) -> None:
        super().__init__(message, run_status=run_status, correlation_id=correlation_id)
        self.keys = tuple(keys)


class DecisionRefused(StopkitError):
    code: ClassVar[str] = "decision_refused"


class ApprovalNotPending(StopkitError):
    code: ClassVar[str] = "approval_not_pending"


class CleanupOnly(StopkitError):
    code: ClassVar[str] = "cleanup_only"


class PartialTextError(StopkitError):
    code: ClassVar[str] = "partial_text"


class RestoreRefused(StopkitError):
    code: ClassVar[str] = "restore_refused"


class InsideTheRun(StopkitError):
    code: ClassVar[str] = "inside_the_run"
