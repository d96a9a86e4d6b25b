"""The life of a steer: a message given to a run that is at work.

    queued ──► sent ──► accepted ──► waiting ──► applied
       │         └─────────┴────────────┴──────► applied | returned | unknown
       └──► returned

`accepted` (the provider owns it) is not `applied` (something proves that it was used).  A steer
ends as applied, returned or unknown, and never goes back to the queue: text that was handed back
belongs to its author again.  It shares no code with the run's own moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Literal, TypeAlias, get_args

from pydantic import JsonValue

from stopkit.errors import IllegalTransition

SteerStatus: TypeAlias = Literal[
    "queued", "sent", "accepted", "waiting", "applied", "returned", "unknown"
]
STEER_STATUSES: Final[tuple[SteerStatus, ...]] = get_args(SteerStatus)

STEER_TRANSITIONS: Final[Mapping[SteerStatus, frozenset[SteerStatus]]] = MappingProxyType(
    {
        "queued": frozenset({"sent", "returned"}),
        "sent": frozenset({"accepted", "waiting", "applied", "returned", "unknown"}),
        "accepted": frozenset({"waiting", "applied", "returned", "unknown"}),
        "waiting": frozenset({"applied", "returned", "unknown"}),
        "applied": frozenset(),
        "returned": frozenset(),
        # The connection came back, and with it an answer.
        "unknown": frozenset({"applied", "returned"}),
    }
)

STEER_ENDS: Final[frozenset[SteerStatus]] = frozenset({"applied", "returned", "unknown"})


@dataclass(frozen=True, slots=True)
class Steer:
    """One message for a run.  `content` is its text, or the message as the API takes it.

    `proof` says what shows that it was applied, or why it was handed back.
    """

    id: str
    run: str
    content: str | Mapping[str, JsonValue]
    status: SteerStatus = "queued"
    proof: str | None = None

    def move(self, to: SteerStatus, proof: str | None = None) -> Steer:
        """This steer in its next status.

        Raises:
            IllegalTransition: for every pair that `STEER_TRANSITIONS` does not list, and for
                `applied` without a proof.
        """
        if to not in STEER_TRANSITIONS[self.status]:
            raise IllegalTransition(f"a steer that is {self.status} cannot become {to}")
        if to == "applied" and not proof:
            raise IllegalTransition("a steer is applied only with a proof")
        return replace(self, status=to, proof=proof or self.proof)

    def end(self) -> Steer:
        """This steer at the end of its run: what was not sent goes back, the rest is unknown."""
        if self.status in STEER_ENDS:
            return self
        if self.status == "queued":
            return self.move("returned", "the run ended before it was sent")
        return self.move("unknown", "the run ended before an answer came")

    def message(self) -> dict[str, JsonValue]:
        """The message as a request carries it; plain text becomes a user message."""
        if isinstance(self.content, str):
            return {"role": "user", "content": self.content}
        return dict(self.content)
