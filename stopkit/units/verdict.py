"""What the facts of a process prove about the call that ran it.  Pure."""

from __future__ import annotations

from typing import Final

from stopkit.outcome import Failed, Outcome, Stopped, Succeeded, Unknown
from stopkit.stop import Cause
from stopkit.units.facts import ProcessFacts

_EVIDENCE: Final = {
    "yes": "its process tree was verified empty",
    "no": "processes of its tree were left",
    "unknown": "whether its process tree is empty is not known",
}


def verdict(facts: ProcessFacts, output: str, *, cause: Cause | None, duration: float) -> Outcome:
    """The outcome of a unit by its facts alone.

    An exit code tells "ran to its end" from "reported an error", and nothing of the effects.  What
    was signalled by us was ended by us, whatever code it then left with.
    """
    kind = cause.kind if cause else None
    text = output or None
    exit_ = facts.exit
    evidence = evidence_of(facts)
    if exit_ is not None and not facts.leader_signalled:
        if exit_.signal is not None:
            return Failed(
                reason=f"ended by signal {exit_.signal}, which this unit did not send",
                output=text,
                cause=kind,
                evidence=evidence,
            )
        if exit_.code != 0:
            return Failed(
                reason=f"it exited with code {exit_.code}",
                output=text,
                exit_code=exit_.code,
                cause=kind,
                evidence=evidence,
            )
        return Succeeded(output=text, effects="unverified", cause=kind, evidence=evidence)
    if facts.survivors:
        return Unknown(
            reason=f"{len(facts.survivors)} of its processes outlive the stop",
            output=text,
            cause=kind,
            evidence=evidence,
            check="look for the survivors that the report names",
        )
    if exit_ is None and facts.verified_empty != "yes":
        return Unknown(
            reason="nobody saw it end",
            output=text,
            cause=kind,
            evidence=evidence,
            check=f"look for processes with {facts.marker} in their environment",
        )
    if exit_ is None and facts.guards_lost and cause is None:
        return Unknown(
            reason="its guard was killed; how it ended was not seen",
            output=text,
            evidence=evidence,
        )
    return Stopped(
        reason="it was stopped",
        output=text,
        cause=kind,
        after=duration,
        exit_code=exit_.code if exit_ else None,
        signal=exit_.signal if exit_ else None,
        evidence=evidence,
    )


def evidence_of(facts: ProcessFacts) -> tuple[str, ...]:
    found: list[str] = []
    if facts.exit is not None:
        how = (
            f"code {facts.exit.code}"
            if facts.exit.code is not None
            else f"signal {facts.exit.signal}"
        )
        found.append(f"its leader {facts.pid} ended with {how}")
    found.append(_EVIDENCE[facts.verified_empty])
    if not facts.output_complete:
        found.append("its output is not complete")
    found.extend(f"its {lost} was killed" for lost in facts.guards_lost)
    return tuple(found)
