"""`Normalizer`: what it handed out stays; what comes later is told, once, where it arrives."""

from __future__ import annotations

import copy
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import pytest
from brute import violations
from client_calls import APIS, calls, results, strings_of, unanswered
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from strategies import damaged_history, texts_of

from stopkit import Api
from stopkit.normalizer import EvidenceError, HistoryError, Normalizer, UnknownApiError, normalize

Item = dict[str, Any]
every_api = pytest.mark.parametrize("api", APIS)


# --- items of each API ---------------------------------------------------------------------------


def user(text: str) -> Item:
    return {"role": "user", "content": text}


def says(text: str) -> Item:
    return {"role": "assistant", "content": text}


def asks(api: Api, *ids: str) -> list[Item]:
    """One model turn with these calls."""
    match api:
        case "anthropic.messages":
            blocks = [{"type": "tool_use", "id": i, "name": "f", "input": {}} for i in ids]
            return [{"role": "assistant", "content": blocks}]
        case "openai.responses":
            call = {"type": "function_call", "name": "f", "arguments": "{}"}
            return [{**call, "call_id": call_id} for call_id in ids]
        case "openai.chat":
            function = {"name": "f", "arguments": "{}"}
            made = [{"id": i, "type": "function", "function": function} for i in ids]
            return [{"role": "assistant", "content": None, "tool_calls": made}]


def result(api: Api, call_id: str, text: str) -> Item:
    match api:
        case "anthropic.messages":
            block = {"type": "tool_result", "tool_use_id": call_id, "content": text}
            return {"role": "user", "content": [block]}
        case "openai.responses":
            return {"type": "function_call_output", "call_id": call_id, "output": text}
        case "openai.chat":
            return {"role": "tool", "tool_call_id": call_id, "content": text}


def words(items: Sequence[Any]) -> str:
    return json.dumps(list(items), ensure_ascii=False)


# --- any interleaving ----------------------------------------------------------------------------


class Living(RuleBasedStateMachine):
    """An agent's life: it asks, calls tools, hears back late or never, stops, goes on."""

    api: Api

    def __init__(self) -> None:
        super().__init__()
        self.counter = 0
        self.normalizer = Normalizer(self.api)
        self.log: list[Item] = []
        self.sent: list[Any] = []
        self.objects: list[Any] = []
        """The items of `sent`, as long as one process lives."""
        self.open: list[str] = []
        self.running: set[str] = set()
        self.told: list[str] = []
        """What was handed in as a call's output, each for another call."""

    def new(self, kind: str) -> str:
        self.counter += 1
        return f"{kind} {self.counter}."

    def hand_in(self, items: list[Item]) -> None:
        before = copy.deepcopy(items)
        self.normalizer.extend(items)
        assert items == before
        self.log += items

    def call(self, at: int, status: str) -> str:
        """A call without an outcome so far, which now has one."""
        call_id = self.open[at % len(self.open)]
        if status == "running":
            self.running.add(call_id)
        else:
            self.open.remove(call_id)
            self.running.discard(call_id)
        return call_id

    @initialize()
    def begin(self) -> None:
        self.hand_in([user(self.new("hello"))])

    @rule()
    def person_speaks(self) -> None:
        self.hand_in([user(self.new("words"))])

    @rule()
    def model_speaks(self) -> None:
        self.hand_in([says(self.new("answer"))])

    @rule(count=st.integers(1, 3))
    def model_calls(self, count: int) -> None:
        ids = [f"call_{self.counter}_{position}" for position in range(count)]
        self.counter += 1
        self.open += ids
        self.hand_in(asks(self.api, *ids))

    @precondition(lambda self: self.open)
    @rule(at=st.integers(0, 30))
    def result_arrives(self, at: int) -> None:
        self.told.append(self.new("output"))
        self.hand_in([result(self.api, self.call(at, "succeeded"), self.told[-1])])

    @precondition(lambda self: self.open)
    @rule(at=st.integers(0, 30), status=st.sampled_from(["succeeded", "stopped", "failed"]))
    def outcome_becomes_known(self, at: int, status: str) -> None:
        self.told.append(self.new("known"))
        known = {"status": status, "output": self.told[-1]}
        self.normalizer.resolve(self.call(at, status), known)

    @precondition(lambda self: self.open)
    @rule(at=st.integers(0, 30))
    def call_is_at_work(self, at: int) -> None:
        self.normalizer.resolve(self.call(at, "running"), {"status": "running"})

    @precondition(lambda self: self.running)
    @rule()
    def nobody_knows_any_more(self) -> None:
        for call_id in sorted(self.running):
            self.normalizer.resolve(call_id, {"status": "unknown", "reason": "lost"})
        self.running.clear()

    @rule()
    def request(self) -> None:
        answer = self.normalizer.request()
        history = list(answer.history)
        assert history[: len(self.sent)] == self.sent
        assert all(old is new for old, new in zip(self.objects, history, strict=False))
        assert answer.undo() == self.log
        if answer.pending:
            assert not answer.sendable
            assert set(answer.pending) <= self.running
            left = [call_id for _, call_id in unanswered(self.api, history)]
            assert sorted(answer.pending) == left
        if not answer.sendable:
            assert answer.pending or answer.hints
            return
        assert violations(self.api, history) == []
        assert Counter(calls(self.api, history)) == Counter(results(self.api, history))
        everything = words(history)
        assert {text: everything.count(text) for text in self.told} == dict.fromkeys(self.told, 1)
        self.sent, self.objects = copy.deepcopy(history), history

    @rule()
    def process_ends_and_another_goes_on(self) -> None:
        record = json.loads(json.dumps(self.normalizer.dump()))
        loaded = Normalizer.load(record, json.loads(json.dumps(self.log)))
        assert loaded.dump() == record
        here, there = self.normalizer.request(), loaded.request()
        assert here.history == there.history
        assert (here.pending, here.sendable) == (there.pending, there.sendable)
        self.normalizer, self.objects = loaded, []
        self.request()

    @invariant()
    def length_is_the_logs(self) -> None:
        assert len(self.normalizer) == len(self.log)


@every_api
def test_any_life_of_an_agent(api: Api) -> None:
    machine = type("LivingOfApi", (Living,), {"api": api})
    run_state_machine_as_test(machine, settings=settings(max_examples=30, stateful_step_count=20))


@every_api
def test_a_broken_log_in_pieces(api: Api) -> None:
    """Whatever the log holds and wherever requests fall, what was sent stays, and nothing goes."""
    sent_twice = 0

    @settings(max_examples=80)
    @given(damaged_history(api), st.lists(st.integers(1, 4), min_size=1, max_size=6))
    def holds(log: list[Item], sizes: list[int]) -> None:
        nonlocal sent_twice
        # A trigger asks for a compaction instead of an answer: a log goes on without it.
        log = [item for item in log if item.get("type") != "compaction_trigger"]
        normalizer = Normalizer(api)
        sent: list[Any] = []
        held: list[Any] = []
        last: list[Any] = []
        at = times = 0
        while at < len(log):
            size = sizes[times % len(sizes)]
            normalizer.extend(log[at : at + size])
            at, times = at + size, times + 1
            answer = normalizer.request()
            history = list(answer.history)
            last = [history, [change.removed for change in answer.changes]]
            assert [id(item) for item in history[: len(sent)]] == [id(item) for item in sent]
            undone = answer.undo()
            assert [id(item) for item in undone] == [id(item) for item in log[:at]]
            if answer.sendable:
                assert violations(api, history) == []
                sent_twice += bool(sent)
                sent = history
                held += last[1]
        normalizer.extend([user("goodbye")])
        answer = normalizer.request()
        held += [change.removed for change in answer.changes]
        everything = "\0".join(strings_of([list(answer.history), held, normalizer.dump()]))
        assert [text for text in texts_of(api, log) if text not in everything] == []

    holds()
    assert sent_twice


# --- one by one ----------------------------------------------------------------------------------


def stopped(api: Api) -> tuple[Normalizer, list[Any]]:
    """A call without result, the person's next words, and the request that went out."""
    normalizer = Normalizer(api)
    normalizer.extend([user("go"), *asks(api, "c1"), user("stop")])
    answer = normalizer.request()
    assert answer.sendable
    return normalizer, list(answer.history)


@every_api
def test_news_may_name_the_occurrence_that_was_sent(api: Api) -> None:
    normalizer, sent = stopped(api)
    normalizer.resolve("c1#2", {"status": "succeeded", "output": "of another"})
    normalizer.resolve("c1#1", {"status": "succeeded", "output": "REAL"})
    normalizer.extend([says("ok"), user("next")])
    history = list(normalizer.request().history)
    assert history[: len(sent)] == sent
    assert repr(history[len(sent) :]).count("REAL") == 1
    assert "of another" not in repr(history)


@every_api
def test_a_late_result_is_told_once_where_it_arrives(api: Api) -> None:
    normalizer, sent = stopped(api)
    normalizer.extend([says("ok"), result(api, "c1", "REAL"), user("next")])
    second = list(normalizer.request().history)
    assert second[: len(sent)] == sent
    new = words(second[len(sent) :])
    assert new.count("REAL") == 1
    assert "late_result" in new
    normalizer.extend([says("fine"), user("more")])
    assert words(normalizer.request().history).count("REAL") == 1


@every_api
def test_news_of_a_call_that_went_out_is_told_once(api: Api) -> None:
    normalizer, sent = stopped(api)
    for _ in range(2):
        normalizer.resolve("c1", {"status": "stopped", "output": "half of it"})
        normalizer.extend([says("ok"), user("next")])
        history = list(normalizer.request().history)
        assert history[: len(sent)] == sent
        assert words(history).count("half of it") == 1


@every_api
def test_news_outlives_the_process_before_it_is_sent(api: Api) -> None:
    normalizer, sent = stopped(api)
    log = [user("go"), *asks(api, "c1"), user("stop"), says("ok"), user("next")]
    normalizer.extend(log[-2:])
    normalizer.resolve("c1", {"status": "stopped", "output": "half of it"})
    loaded = Normalizer.load(json.loads(json.dumps(normalizer.dump())), log)
    history = list(loaded.request().history)
    assert history[: len(sent)] == sent
    assert words(history).count("half of it") == 1
    assert history == list(normalizer.request().history)


@every_api
def test_a_running_call_blocks_until_it_ends(api: Api) -> None:
    normalizer = Normalizer(api)
    normalizer.extend([user("go"), *asks(api, "c1", "c2"), result(api, "c1", "one")])
    normalizer.resolve("c2", {"status": "running"})
    waiting = normalizer.request()
    assert (waiting.pending, waiting.sendable) == (("c2",), False)
    assert unanswered(api, waiting.history) == [(calls(api, waiting.history)[1])]
    normalizer.extend([result(api, "c2", "two")])
    done = normalizer.request()
    assert (done.pending, done.sendable) == ((), True)
    assert "two" in words(done.history)
    assert done.changes == []


@every_api
def test_live_keep_waits_for_the_calls_of_the_last_turn(api: Api) -> None:
    normalizer = Normalizer(api, live="keep")
    normalizer.extend([user("go"), *asks(api, "c1")])
    assert normalizer.request().pending == ("c1",)
    normalizer.resolve("c1", {"status": "not_started", "reason": "queue dropped"})
    answer = normalizer.request()
    assert (answer.pending, answer.sendable) == ((), True)
    assert "queue dropped" in words(answer.history)


def test_text_beside_an_open_server_call_comes_at_the_next_user_turn() -> None:
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    call = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
    reply = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "r"}
    normalizer = Normalizer("anthropic.messages")
    normalizer.extend([user("go"), {"role": "assistant", "content": [search, call]}])
    normalizer.extend([{"role": "user", "content": [reply, {"type": "text", "text": "WAIT"}]}])
    first = normalizer.request()
    assert first.sendable
    assert "WAIT" not in words(first.history)
    assert [change.kind for change in first.changes] == ["deferred"]
    loaded = Normalizer.load(normalizer.dump(), first.undo())
    for living in (normalizer, loaded):
        living.extend([{"role": "assistant", "content": [found]}, user("next")])
        second = living.request()
        assert second.sendable
        assert violations("anthropic.messages", second.history) == []
        assert list(second.history[:3]) == list(first.history)
        assert words(second.history[3:]).count("WAIT") == 1
        assert second.history[3]["role"] == "assistant"  # type: ignore[index]


@every_api
def test_a_request_again_is_the_same_history(api: Api) -> None:
    normalizer, sent = stopped(api)
    again = normalizer.request()
    assert list(again.history) == sent
    assert again.changes == []
    normalizer.extend([])
    assert list(normalizer.request().history) == sent


@every_api
def test_an_id_may_come_again_in_a_later_turn(api: Api) -> None:
    normalizer, _ = stopped(api)
    normalizer.extend([*asks(api, "c1"), result(api, "c1", "second"), user("next")])
    answer = normalizer.request()
    assert answer.sendable
    assert violations(api, answer.history) == []
    assert [(entry.call_id, entry.occurrence, entry.status) for entry in answer.outcomes] == [
        ("c1", 2, "succeeded")
    ]


@every_api
@pytest.mark.parametrize(
    "wrong",
    [
        7,
        None,
        "text",
        {"role": "nobody", "content": "x"},
        {"role": "user", "content": float("nan")},
    ],
)
def test_extend_takes_all_or_nothing(api: Api, wrong: Any) -> None:
    normalizer, sent = stopped(api)
    with pytest.raises(HistoryError) as refused:
        normalizer.extend([says("ok"), user("next"), wrong])
    root = "input" if api == "openai.responses" else "messages"
    assert refused.value.path.startswith(f"{root}.2")
    assert len(normalizer) == 2 + len(asks(api, "c1"))
    assert list(normalizer.request().history) == sent


@every_api
def test_evidence_that_is_none_is_refused(api: Api) -> None:
    normalizer, sent = stopped(api)
    with pytest.raises(EvidenceError) as refused:
        normalizer.resolve("c1", {"status": "cancelled"})
    assert refused.value.path == "evidence.c1"
    assert list(normalizer.request().history) == sent


@every_api
def test_a_record_that_is_none_is_refused(api: Api) -> None:
    normalizer, _ = stopped(api)
    record, log = normalizer.dump(), [user("go"), *asks(api, "c1"), user("stop")]
    with pytest.raises(HistoryError, match="version") as refused:
        Normalizer.load({**record, "version": 99}, log)
    assert refused.value.path == "record.version"
    with pytest.raises(HistoryError, match="log") as refused:
        Normalizer.load(record, log[:1])
    assert refused.value.path == "record.log_length"
    with pytest.raises(UnknownApiError):
        Normalizer.load({**record, "api": "other"}, log)
    for field in record:
        with pytest.raises(HistoryError):
            Normalizer.load({key: value for key, value in record.items() if key != field}, log)


@every_api
@pytest.mark.parametrize("wrong", [None, "x", [7], {"x": 7}, -1])
def test_a_field_of_a_record_is_of_its_kind(api: Api, wrong: Any) -> None:
    normalizer, sent = stopped(api)
    record, log = normalizer.dump(), [user("go"), *asks(api, "c1"), user("stop")]
    for field in ("version", "api", "log_length", "splices", "evidence", "told"):
        with pytest.raises(HistoryError):
            Normalizer.load({**record, field: wrong}, log)
    assert list(Normalizer.load(record, log).request().history) == sent


# --- cost ----------------------------------------------------------------------------------------


def lines_run(work: Callable[[], object]) -> int:
    """How many lines of Python `work` runs."""
    count = 0

    def on_line(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        count += event == "line"
        return on_line

    before = sys.gettrace()
    sys.settrace(on_line)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@every_api
def test_extend_and_request_cost_what_is_new(api: Api) -> None:
    costs = []
    # The first round loads what is loaded once, and is not compared.
    for turns in (10, 10, 1_000):
        normalizer = Normalizer(api)
        for turn in range(turns):
            call_id = f"c{turn}"
            normalizer.extend([user("go"), *asks(api, call_id), result(api, call_id, "r")])
            normalizer.extend([says("ok")])
        normalizer.extend([user("go")])
        assert normalizer.request().sendable
        turn_of_4 = [says("ok"), user("go"), *asks(api, "new"), result(api, "new", "r")]
        costs.append(
            [
                lines_run(lambda at=normalizer, new=turn_of_4: at.extend(new)),  # type: ignore[misc]
                lines_run(normalizer.request),
                lines_run(lambda at=normalizer: at.extend([*asks(at.api, "x"), user("stop")])),  # type: ignore[misc]
                lines_run(normalizer.request),
            ]
        )
    # A hundred times the past may cost a few lines (a cache that was full), never a share of it.
    assert all(long <= 1.05 * short + 20 for short, long in zip(costs[1], costs[2], strict=True))


@every_api
def test_the_living_form_says_what_the_function_says(api: Api) -> None:
    log = [user("go"), *asks(api, "c1", "c2"), result(api, "c2", "two"), user("stop")]
    normalizer = Normalizer(api)
    normalizer.extend(log)
    living, whole = normalizer.request(), normalize(log, api=api)
    assert list(living.history) == list(whole.history)
    assert living.changes == whole.changes
    assert living.outcomes == whole.outcomes
