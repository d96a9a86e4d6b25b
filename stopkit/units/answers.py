"""What an HTTP reply proves about an operation.  Pure.

2xx               done (202: accepted, not done)
3xx               not followed: an operation is sent once, to one place
400 and the like  refused; nothing ran
408, 5xx          it may have run: the service failed somewhere on the way
409               another request with this key is at work (Stripe, "idempotent requests")
429               turned away before it ran
400 of type idempotency_error: the key belongs to other parameters; nothing ran for these
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from stopkit.operation import Absent, Done, NoAnswer, StatusAnswer
from stopkit.outcome import Failed, NotStarted, Outcome, Succeeded

REPLAYED: Final = "idempotent-replayed"
"""The header by which Stripe marks an answer from its memory of the key."""

REQUEST_IDS: Final = ("request-id", "x-request-id")

_DONE: Final = frozenset({"succeeded", "success", "completed", "complete", "done"})
_ABSENT: Final = frozenset({"canceled", "cancelled", "absent", "not_found"})
_GOING_ON: Final = frozenset(
    {"pending", "queued", "accepted", "running", "processing", "in_progress", "cancelling"}
)


@dataclass(frozen=True, slots=True)
class GoingOn:
    """A status check: the service has the operation, and is not through with it."""

    note: str = ""


@dataclass(frozen=True, slots=True)
class Undecided:
    """A reply that does not tell; the service's status decides."""

    reason: str


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply as far as it is read.  Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    @property
    def replayed(self) -> bool:
        return self.headers.get(REPLAYED, "").lower() == "true"

    @property
    def request_id(self) -> str | None:
        return next((self.headers[name] for name in REQUEST_IDS if name in self.headers), None)

    @property
    def retry_after(self) -> float | None:
        """Seconds; None where it is not given as a number."""
        try:
            return float(self.headers["retry-after"])
        except (KeyError, ValueError):
            return None

    def json(self) -> object:
        try:
            return json.loads(self.body)
        except ValueError:
            return None


OperationStatus: TypeAlias = StatusAnswer | GoingOn


def read_reply(reply: Reply, *, writes: bool) -> Outcome | Undecided:
    """What the reply to the operation itself proves."""
    status = reply.status
    said = f"the service answered {status}"
    evidence = (said, "a replay of its first answer") if reply.replayed else (said,)
    if status == 202:
        return Undecided("the service accepted it, and has not said that it is done")
    if 200 <= status < 300:
        return Succeeded(
            output=reply.text,
            effects="confirmed" if writes else "unverified",
            evidence=evidence,
        )
    if status == 409:
        return Undecided("another request with its key is at work")
    if status == 429:
        return NotStarted(
            reason="the service turned it away: too many requests",
            cause="rate_limited",
            evidence=evidence,
        )
    if status == 400 and _error_type(reply) == "idempotency_error":
        return NotStarted(
            reason="its key was used before, with other parameters",
            cause="key_conflict",
            output=reply.text,
            evidence=evidence,
        )
    if 400 <= status < 500 and status != 408:
        return Failed(
            reason=f"the service refused it with {status}",
            output=reply.text,
            effects="none",
            evidence=evidence,
        )
    if not writes and status >= 400:
        return Failed(reason=said, output=reply.text, effects="none", evidence=evidence)
    return Undecided(said)


def read_status(reply: Reply) -> OperationStatus:
    """The usual reading of a status endpoint: 404 or 410, or JSON with a `status`."""
    if reply.status in (404, 410):
        return Absent(f"its status is {reply.status}")
    if not 200 <= reply.status < 300:
        return NoAnswer(f"its status endpoint answered {reply.status}")
    body = reply.json()
    word = str(body.get("status", "")).lower() if isinstance(body, dict) else ""
    if word in _DONE:
        return Done(reply.text, reply.request_id)
    if word in _ABSENT:
        return Absent(f"its status is {word}")
    if word in _GOING_ON:
        return GoingOn(word)
    return NoAnswer(f"its status is not understood: {reply.text[:80]!r}")


_BEFORE_ANY_BYTE: Final = frozenset(
    {"ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol", "InvalidURL"}
)


def before_any_byte(error: BaseException) -> bool:
    """True where the client's own error says that no connection was made.

    By name, as httpx and httpx2 have the same names and no common class.
    """
    return any(kind.__name__ in _BEFORE_ANY_BYTE for kind in type(error).__mro__)


def _error_type(reply: Reply) -> str:
    body = reply.json()
    error = body.get("error") if isinstance(body, dict) else None
    return str(error.get("type", "")) if isinstance(error, dict) else ""
