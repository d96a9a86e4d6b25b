"""Ends of calls that are easy to judge wrongly, or not at all."""

from __future__ import annotations

import asyncio
import functools
import threading

import pytest
from engine.world import call, kinds, virtual

from stopkit.errors import ToolRegistrationError
from stopkit.stop import StopPolicy
from stopkit.stopping import Ending
from stopkit.store import MemoryStore
from stopkit.tool import ThreadContext, ToolContext, tool


def handing_on(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


def outcome_of(made, **arguments):
    async def main(world):
        async with await world.open() as scope:
            (outcome,) = await scope.run_calls([call(made.name, **arguments)], [made])
        assert scope.report.status in ("completed", "needs_reconciliation")
        return outcome

    return virtual(main)


def test_a_decorated_coroutine_function_is_awaited():
    entered = []

    @tool(effect="write", status=None)
    @handing_on
    async def write(ctx: ToolContext, what: str) -> str:
        await ctx.dispatched()
        entered.append(what)
        return f"wrote {what}"

    assert not write.in_thread
    assert outcome_of(write, what="x").output == "wrote x"
    assert entered == ["x"]


def test_what_a_plain_function_hands_on_is_awaited():
    async def inner():
        return "done"

    @tool(effect="write", status=None)
    def write() -> object:
        return inner()

    assert outcome_of(write).output == "done"


def test_what_a_plain_function_hands_on_is_cut_at_once():
    async def main(world):
        @tool(effect="read")
        def look() -> object:
            return asyncio.sleep(1000)

        async with await world.open() as scope:
            performing = asyncio.create_task(scope.run_calls([call("look")], [look]))
            while not (scope._work.calls and scope._work.calls[0].thread):  # noqa: ASYNC110
                await asyncio.sleep(0)
            (state,) = scope._work.calls
            await asyncio.wrap_future(state.thread)
            await asyncio.sleep(0.1)
            await scope.request_stop()
            await asyncio.wait({performing})
            assert world.clock.monotonic() < 1
        return scope.report.calls[0].outcome

    assert virtual(main).status == "stopped"


def test_a_generator_is_no_result():
    async def several():
        yield "x"

    @tool(effect="write", status=None)
    def write() -> object:
        return several()

    outcome = outcome_of(write)
    assert outcome.status == "unknown"
    assert "generator" in outcome.reason


def test_functions_that_yield_are_refused():
    async def asynchronous(n: int):
        yield n

    def plain(n: int):
        yield n

    for function in (asynchronous, plain, handing_on(asynchronous)):
        with pytest.raises(ToolRegistrationError, match="yields"):
            tool(effect="read")(function)


@pytest.mark.parametrize("key", [7, "", None])
def test_a_key_that_is_no_string_starts_nothing(key):
    @tool(effect="write", status=None, key=lambda arguments: key)
    async def write() -> str:
        raise AssertionError

    outcome = outcome_of(write)
    assert outcome.status == "not_started"
    assert "its key is a string" in outcome.reason


@pytest.mark.parametrize(
    "given",
    [
        lambda ctx: ctx.output(b"bytes"),
        lambda ctx: ctx.receipt(7),
        lambda ctx: ctx.receipt(provider_request_id=7),
    ],
)
def test_output_and_receipts_are_strings(given):
    @tool(effect="read")
    async def look(ctx: ToolContext) -> str:
        given(ctx)
        return "seen"

    outcome = outcome_of(look)
    assert outcome.status == "failed"
    assert "is a string, not" in outcome.reason


class Wordless(Exception):
    def __str__(self):
        raise RuntimeError


def test_an_error_without_words_is_judged():
    @tool(effect="read")
    async def look() -> str:
        raise Wordless

    assert outcome_of(look).reason == "Wordless: (its words raised)"


def test_an_end_that_cannot_be_judged_leaves_the_call_unknown(monkeypatch):
    def judge(*_):
        raise RuntimeError("no verdict")

    monkeypatch.setattr("stopkit.work.judge", judge)

    @tool(effect="read")
    async def look() -> str:
        return "seen"

    outcome = outcome_of(look)
    assert outcome.status == "unknown"
    assert "no verdict" in outcome.reason


def test_stop_iteration_leaves_a_thread_as_an_error():
    @tool(effect="read")
    def look() -> str:
        raise StopIteration("x")

    assert outcome_of(look).reason == "RuntimeError: the tool raised StopIteration: x"


class Speechless:
    def __repr__(self):
        raise RuntimeError


@pytest.mark.parametrize(
    ("value", "output"),
    [(b"\xff", r"b'\xff'"), ({"a": "\ud800"}, r"{'a': '\ud800'}"), (Speechless(), "<Speechless>")],
)
def test_a_result_that_is_no_json_is_a_result(value, output):
    @tool(effect="write", status=None)
    async def write() -> object:
        return value

    outcome = outcome_of(write)
    assert (outcome.status, outcome.output) == ("succeeded", output)


def test_a_thread_that_ends_while_its_cut_is_on_the_way_keeps_its_result(monkeypatch):
    entered, go_on = threading.Event(), threading.Event()
    cut = Ending._cut

    def cut_late(ending, state):
        cut(ending, state)
        go_on.set()
        state.thread.result(10)

    monkeypatch.setattr(Ending, "_cut", cut_late)

    @tool(effect="write", status=None)
    def write() -> str:
        entered.set()
        go_on.wait(10)
        return "written"

    async def main():
        store = MemoryStore()
        policy = StopPolicy(ack_wait=0, grace=0, verify_wait=5)
        try:
            async with await store.open_run(session="s1", stop=policy) as scope:
                performing = asyncio.create_task(scope.run_calls([call("write")], [write]))
                await asyncio.to_thread(entered.wait, 10)
                await scope.request_stop()
                await asyncio.wait({performing})
            return scope.report
        finally:
            store.close()

    report = asyncio.run(main())
    assert report.status == "cancelled"
    assert report.calls[0].outcome.output == "written"


def test_files_are_looked_at_before_a_write_counts_as_done(tmp_path, monkeypatch):
    """A stop in the middle of that finds a call that was never entered."""
    looking, go_on = threading.Event(), threading.Event()

    def slow(_paths):
        looking.set()
        go_on.wait(10)

    monkeypatch.setattr("stopkit.performing.snapshot", slow)

    @tool(effect="write", status=None, files=lambda arguments: [tmp_path / "f"])
    async def write() -> str:
        raise AssertionError

    async def main():
        store = MemoryStore()
        try:
            async with await store.open_run(session="s1") as scope:
                performing = asyncio.create_task(scope.run_calls([call("write")], [write]))
                await asyncio.to_thread(looking.wait, 10)
                await scope.request_stop()
                await asyncio.wait({performing})
            go_on.set()
            return scope.report, kinds(await store.events(scope.id))
        finally:
            go_on.set()
            store.close()

    report, found = asyncio.run(main())
    assert report.status == "cancelled"
    assert report.calls[0].outcome.status == "not_started"
    assert "call.intended" not in found


def test_files_that_cannot_be_named_start_nothing():
    @tool(effect="write", status=None, files=lambda arguments: [arguments["missing"]])
    def write(ctx: ThreadContext) -> str:
        raise AssertionError

    outcome = outcome_of(write)
    assert (outcome.status, outcome.effects) == ("not_started", "none")
    assert "its files" in outcome.reason
