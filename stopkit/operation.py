"""Operations: one tool call with its key, its ledger row and what may follow from it.

    intended ──► dispatched ──► settled
        └───────────────────────►┘

1. The row is written before the tool starts (`intended`); a row that cannot be written means that
   the tool does not start.
2. `dispatched` is the commit point, and it too is written before the effect can happen.  A write
   that cannot say when it commits is dispatched from its start.
3. `settled` has an outcome.  Only evidence or a named person moves it again (`resettle`), and only
   from what was not known.

Pure: no clock, no randomness.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from stopkit.errors import DecisionRefused
from stopkit.outcome import NotStarted, Outcome, Succeeded, Unknown

EffectClass: TypeAlias = Literal["read", "write", "cleanup", "detached"]
Stage: TypeAlias = Literal["intended", "dispatched", "settled"]
Decision: TypeAlias = Literal["happened", "did_not_happen", "accept_unknown"]

EFFECT_CLASSES: Final[tuple[EffectClass, ...]] = get_args(EffectClass)
STAGES: Final[tuple[Stage, ...]] = get_args(Stage)

KEY_PREFIX: Final = "op_"
UNDO_SUFFIX: Final = "_undo"
_KEY_LENGTH: Final = 26


@dataclass(frozen=True, slots=True)
class Operation:
    """One ledger row.  Times are seconds since the epoch.

    `request` is the ordinal of the model request that made the call, within the lineage.
    `first_dispatched_at` is that of the first attempt under this key: a service's memory of a key
    is counted from there.  `decided_by` is the person who accepted or settled what was unknown.
    """

    key: str
    run: str
    request: int
    call_id: str
    occurrence: int
    name: str
    arguments: Mapping[str, object]
    fingerprint: str
    effect: EffectClass
    stage: Stage
    intended_at: float | None = None
    dispatched_at: float | None = None
    first_dispatched_at: float | None = None
    settled_at: float | None = None
    outcome: Outcome | None = None
    receipts: tuple[str, ...] = ()
    provider_request_id: str | None = None
    decided_by: str | None = None

    @property
    def unverified(self) -> bool:
        """True while nobody knows whether this operation changed the world."""
        if self.decided_by is not None or self.effect not in ("write", "detached"):
            return False
        if self.outcome is None:
            return self.dispatched_at is not None
        return self.outcome.status != "succeeded" and self.outcome.effects == "unverified"

    @property
    def standing(self) -> bool:
        """True where an effect is known to have happened."""
        return (
            self.effect in ("write", "detached")
            and self.outcome is not None
            and self.outcome.effects == "confirmed"
        )


def allocate_key(lineage: str, request: int, call_id: str, occurrence: int) -> str:
    """The idempotency key of a call: `op_` and 26 characters of base32.

    Call ids recur over turns, so the request's ordinal is part of it; attempts share a lineage, so
    the attempt is not.
    """
    # A length before each part keeps ("a", "bc") and ("ab", "c") apart.
    parts = (lineage, str(request), call_id, str(occurrence))
    text = "".join(f"{len(part)}:{part}" for part in parts)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return KEY_PREFIX + base64.b32encode(digest).decode("ascii")[:_KEY_LENGTH].lower()


def fingerprint(name: str, arguments: Mapping[str, object]) -> str:
    """What a key vouches for: the tool and its arguments, in any order of their names."""
    text = json.dumps([name, arguments], sort_keys=True, ensure_ascii=True, default=repr)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


@dataclass(frozen=True, slots=True)
class Go:
    """The tool may start.  `again` is True where an earlier attempt used the key."""

    again: bool = False


@dataclass(frozen=True, slots=True)
class Replay:
    """The operation is done already; this is its outcome, and nothing runs."""

    outcome: Succeeded


@dataclass(frozen=True, slots=True)
class Refuse:
    """The tool may not start."""

    code: Literal["key_conflict", "reconcile_first", "key_past_retention", "in_progress", "undone"]
    reason: str

    @property
    def outcome(self) -> NotStarted:
        return NotStarted(reason=self.reason, cause=self.code)


Admission: TypeAlias = Go | Replay | Refuse


def admit(
    earlier: Operation | None,
    *,
    fingerprint: str,
    now: float,
    retention: float | None,
    undo: Operation | None = None,
) -> Admission:
    """Whether a call may start under a key, given the latest operation that had it, and its undo.

    `retention` is how many seconds the service behind the tool remembers a key; None says that it
    never forgets one.
    """
    if earlier is None:
        return Go()
    if earlier.fingerprint != fingerprint:
        return Refuse("key_conflict", "this key was used before, for other arguments")
    if earlier.outcome is None:
        return Refuse("in_progress", "an operation with this key has not ended")
    if isinstance(earlier.outcome, Succeeded):
        if undo is not None and not (undo.outcome and undo.outcome.effects == "confirmed_absent"):
            # The service remembers this key as done, and would not do it again either.
            return Refuse(
                "undone",
                "the operation with this key was undone, or may have been; "
                "run it as a new operation under a key of its own",
            )
        found = (*earlier.outcome.evidence, f"recorded in run {earlier.run}")
        return Replay(earlier.outcome.model_copy(update={"evidence": found}))
    if earlier.unverified:
        return Refuse("reconcile_first", "an earlier attempt with this key is not reconciled")
    if earlier.outcome.effects != "confirmed_absent" and past_retention(
        earlier, now=now, retention=retention
    ):
        return Refuse(
            "key_past_retention",
            "the service may have forgotten this key; look first, then run it as a new operation",
        )
    return Go(again=True)


def past_retention(operation: Operation, *, now: float, retention: float | None) -> bool:
    """Whether the service may have forgotten the key of an operation by now."""
    return (
        retention is not None
        and operation.first_dispatched_at is not None
        and now - operation.first_dispatched_at > retention
    )


def outcomes_by_call_id(operations: Iterable[Operation]) -> dict[str, list[Outcome | None]]:
    """What became of the calls of a lineage, by call id, in the order in which they were made.

    `operations` are in the order of the attempts.  A call that several attempts took up is one
    call: what ran says more of it than what was not started, and a success more than all.
    """

    def says(outcome: Outcome | None) -> int:
        if outcome is None:
            return 1
        return {"succeeded": 2, "not_started": 0, "denied": 0}.get(outcome.status, 1)

    calls: dict[tuple[int, str, int], Outcome | None] = {}
    for operation in operations:
        place = (operation.request, operation.call_id, operation.occurrence)
        if place not in calls or says(operation.outcome) >= says(calls[place]):
            calls[place] = operation.outcome
    found: dict[str, list[Outcome | None]] = {}
    for place in sorted(calls):
        found.setdefault(place[1], []).append(calls[place])
    return found


@dataclass(frozen=True, slots=True)
class Done:
    """A tool's `status`: the operation happened; `output` is its result, `receipt` the proof."""

    output: str = ""
    receipt: str | None = None


@dataclass(frozen=True, slots=True)
class Absent:
    """A tool's `status`: the service has no such operation, and will not have it any more."""

    note: str = ""


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """A tool's `status`: it could not be found out."""

    reason: str = ""


StatusAnswer: TypeAlias = Done | Absent | NoAnswer


def resettle_by_answer(operation: Operation, answer: StatusAnswer) -> Outcome | None:
    """The outcome that an answer establishes; None where it establishes nothing."""
    before = operation.outcome
    match answer:
        case Done(output, receipt):
            evidence = "its status check says done"
            return Succeeded(
                output=output,
                key=operation.key,
                cause=before.cause if before else None,
                evidence=(evidence, receipt) if receipt else (evidence,),
            )
        case Absent(note):
            evidence = "its status check says absent"
            return Unknown(
                reason="it did not take effect",
                key=operation.key,
                cause=before.cause if before else None,
                effects="confirmed_absent",
                evidence=(f"{evidence}: {note}",) if note else (evidence,),
            )
        case NoAnswer():
            return None


def resettle_by_person(operation: Operation, decision: Decision, *, by: str, words: str) -> Outcome:
    """The outcome that a named person's decision establishes.

    Raises:
        DecisionRefused: for an operation whose effects are known, or a person without a name.
    """
    if not by.strip():
        raise DecisionRefused("a decision needs the name of who takes it")
    if not operation.unverified:
        raise DecisionRefused(f"what became of {operation.key} is known already")
    before = operation.outcome
    said = f"{by} decided: {decision}" + (f" ({words})" if words else "")
    evidence = (*(before.evidence if before else ()), said)
    cause = before.cause if before else None
    match decision:
        case "happened":
            return Succeeded(
                output=before.output if before else None,
                key=operation.key,
                cause=cause,
                evidence=evidence,
            )
        case "did_not_happen":
            return Unknown(
                reason="it did not take effect",
                key=operation.key,
                cause=cause,
                effects="confirmed_absent",
                evidence=evidence,
            )
        case "accept_unknown":
            return Unknown(
                reason="accepted as unknown", key=operation.key, cause=cause, evidence=evidence
            )


def outcome_of_lost_worker(operation: Operation) -> Outcome:
    """What a ledger row proves about a call whose worker is gone."""
    if operation.outcome is not None:
        return operation.outcome
    if operation.effect == "read":
        return Unknown(
            reason="its worker was lost", key=operation.key, evidence=("declared read-only",)
        )
    if operation.dispatched_at is None:
        return Unknown(
            reason="its worker was lost before the commit point",
            key=operation.key,
            effects="confirmed_absent",
            evidence=("the ledger has no dispatch, and one is recorded before it is made",),
        )
    return Unknown(
        reason="its worker was lost after the commit point",
        key=operation.key,
        evidence=("the ledger has a dispatch, and no result",),
        check=f"ask the service for {operation.key}",
    )
