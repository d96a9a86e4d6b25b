"""A unit as the work of a tool call: started behind the run's door, stopped with the run."""

from __future__ import annotations

import asyncio
from functools import partial

from stopkit.errors import StopRequested, ToolFailed
from stopkit.outcome import Denied, Failed, NotStarted, Stopped, Succeeded, Unknown
from stopkit.stop import Cause
from stopkit.tool import ToolContext
from stopkit.units.errors import UnitNotStarted, UnitOutcomeUnknown
from stopkit.units.facts import UnitReport
from stopkit.units.unit import Unit


async def attend(unit: Unit, ctx: ToolContext) -> str:
    """Run `unit` to its end and return its output; use it in a tool.

    The call is dispatched right before the start.  A stop of the run is a stop of the unit, and
    its evidence goes to the call's outcome.  A unit that was stopped, failed or is unknown ends
    the call with the error that says so.

    Raises:
        StopRequested: the unit was stopped, or never started because of a stop.
        ToolFailed: it failed, for certain.
        UnitOutcomeUnknown: nobody knows what became of it.

    Cancellation: the unit is stopped first.
    """
    await ctx.dispatched()
    loop = asyncio.get_running_loop()

    def asked() -> None:
        cause = ctx.signal.cause
        if cause is not None:
            loop.call_soon_threadsafe(partial(_request, unit, cause))

    unsubscribe = None
    try:
        async with unit:
            unsubscribe = ctx.signal.on_request(asked)
            await unit.wait()
    except UnitNotStarted as error:
        raise ToolFailed(str(error), no_effects=True) from error
    except asyncio.CancelledError:
        if unit.ended:
            _tell(unit.report, ctx)
            if isinstance(unit.report.outcome, Stopped) and ctx.signal.requested:
                # The unit knows more than "it was cut": it was stopped, and looked after.
                raise _stopped(unit, ctx) from None
        raise
    finally:
        if unsubscribe is not None:
            unsubscribe()
    report = unit.report
    _tell(report, ctx)
    outcome = report.outcome
    match outcome:
        case Succeeded():
            return outcome.output or ""
        case Stopped():
            raise _stopped(unit, ctx)
        case Failed() | NotStarted() | Denied():
            certain = outcome.effects in ("none", "confirmed_absent")
            raise ToolFailed(outcome.reason or outcome.status, no_effects=certain)
        case Unknown():
            if outcome.effects == "confirmed_absent":
                raise ToolFailed(outcome.reason or outcome.status, no_effects=True)
            raise UnitOutcomeUnknown(outcome.reason or "nobody knows what became of it")


def _request(unit: Unit, cause: Cause) -> None:
    if not unit.ended:
        unit.request_stop(cause)


def _stopped(unit: Unit, ctx: ToolContext) -> StopRequested:
    return StopRequested(cause=ctx.signal.cause or unit.report.cause, where=unit.id)


def _tell(report: UnitReport, ctx: ToolContext) -> None:
    for fact in report.outcome.evidence:
        ctx.receipt(f"{report.kind} unit: {fact}")
    if report.outcome.status != "succeeded" and report.outcome.output:
        ctx.output(report.outcome.output)
