"""What holds for every history: the invariants of check and normalize, over drawn histories.

Run as a script with a file of drawn cases, it prints their digest: that is how other processes,
with other hash seeds, are asked for the same bytes.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from brute import violations
from client_calls import (
    APIS,
    call_ids,
    calls,
    results,
    strings_of,
    unanswered,
    without_results,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import damaged_history, requests, texts_of, valid_history

from stopkit import STATUSES, Api, parse_outcome
from stopkit.normalizer import Normalized, check, normalize
from stopkit.normalizer.repair import dialect

Item = dict[str, Any]
every_api = pytest.mark.parametrize("api", APIS)
more = settings(max_examples=80)

_STATUSES = [*STATUSES, "running", "placeholder"]


facts = st.fixed_dictionaries(
    {"status": st.sampled_from(_STATUSES)},
    optional={
        "reason": st.sampled_from(["queue dropped", 'line\nbreak ]\n{"', "é 日本 \U0001f600"]),
        "cause": st.sampled_from(["user", "deadline"]),
        "output": st.sampled_from(["", "evidence output", "a\nOutput:\nb]\n"]),
        "key": st.just("op_abc"),
    },
)


def evidence_for(open_ids: list[str], ids: list[str]) -> st.SearchStrategy[dict[str, Item]]:
    """Words about some of the calls, by id and by occurrence, and about one that is not there."""
    others = [*ids, *(f"{call_id}#2" for call_id in ids), "call_nowhere"]
    keys = st.sampled_from(sorted(others))
    if open_ids:
        keys = st.one_of(st.sampled_from(open_ids), st.sampled_from(open_ids), keys)
    return st.dictionaries(keys, facts, max_size=4)


@st.composite
def cases(draw: st.DrawFn, api: Api) -> tuple[list[Item], dict[str, Item], Item]:
    """(history, evidence, request)"""
    history = draw(st.one_of(valid_history(api), damaged_history(api)))
    waiting = [call_id for family, call_id in unanswered(api, history) if family != "legacy"]
    return history, draw(evidence_for(waiting, call_ids(api, history))), draw(requests(api))


def everything_in(result: Normalized[Any]) -> str:
    """All words of the repaired history and of what its report holds."""
    held = [change.removed for change in result.changes]
    return "\0".join(strings_of([list(result.history), held]))


def prefix_violations(api: Api, history: Sequence[Any], request: Item) -> list[Any]:
    return [entry for entry in violations(api, history, request) if entry[2] == "prefix"]


_OPEN = {
    "ANT-PAIR-1",
    "OAI-PAIR-1",
    "OAI-CU-1",
    "OAI-MCP-1",
    "CHAT-PAIR-1",
    "CHAT-FN-1",
}
"""The rules that an open call breaks."""


def assert_legal(api: Api, result: Normalized[Any], request: Item) -> None:
    """No rule is broken but by open calls; and those are pending, each once, and nothing else.

    A call that is at work stays open even where words stand behind it already: a made-up result
    would be a lie, and moving the words would be another.
    """
    broken = {rule for rule, _, _ in prefix_violations(api, result.history, request)}
    assert broken <= (_OPEN if result.pending else set())
    waiting = unanswered(api, result.history)
    renamed = sum(change.kind == "renamed" for change in result.changes)
    named = Counter(call_id for family, call_id in waiting if family != "legacy")
    # The caller knows a renamed call by its old id.
    assert (named - Counter(result.pending)).total() <= renamed
    assert len(waiting) == len(result.pending)


# --- check ---------------------------------------------------------------------------------------


@every_api
def test_check_agrees_with_a_checker_written_apart(api: Api) -> None:
    @more
    @given(st.one_of(valid_history(api), damaged_history(api)), requests(api))
    def agrees(history: list[Item], request: Item) -> None:
        checked = check(history, api=api, request=request)
        ours = {(v.rule, v.path, v.scope) for v in checked.violations}
        assert ours == set(violations(api, history, request))
        assert checked.valid == (not prefix_violations(api, history, request))
        assert check({**request, _field(api): history}, api=api).violations == checked.violations

    agrees()


@every_api
def test_where_the_fast_pass_finds_nothing_there_is_nothing(api: Api) -> None:
    looked_away = 0

    @more
    @given(st.one_of(valid_history(api), damaged_history(api)), requests(api))
    def holds(history: list[Item], request: Item) -> None:
        nonlocal looked_away
        speaks = dialect(api)
        if not speaks.scan(history, request).spans:
            looked_away += 1
            assert speaks.violations(history, request) == []

    holds()
    assert looked_away, "no drawn history went through the fast pass"


def _field(api: Api) -> str:
    return "input" if api == "openai.responses" else "messages"


# --- normalize -----------------------------------------------------------------------------------


@every_api
def test_a_valid_history_comes_back_as_the_very_object(api: Api) -> None:
    @given(valid_history(api))
    def untouched(history: list[Item]) -> None:
        result = normalize(history, api=api, live="keep")
        assert result.history is history
        assert result.changes == []
        assert_legal(api, result, {})
        if not violations(api, history):
            assert normalize(history, api=api).history is history

    untouched()


@every_api
def test_repaired_histories_are_valid_and_repaired_once(api: Api) -> None:
    @more
    @given(cases(api))
    def valid(case: tuple[list[Item], dict[str, Item], Item]) -> None:
        history, evidence, request = case
        result = normalize(history, api=api, evidence=evidence, request=request)
        assert_legal(api, result, request)
        checked = check(result.history, api=api, request=request)
        assert checked.valid == (not prefix_violations(api, result.history, request))
        if result.sendable:
            assert not violations(api, result.history, request)
            assert not result.pending
        again = normalize(list(result.history), api=api, evidence=evidence, request=request)
        assert (again.changes, list(again.history)) == ([], list(result.history))
        again = normalize(result.history, api=api, evidence=evidence, request=request)
        assert again.history is result.history

    valid()


@every_api
def test_every_call_of_a_sendable_history_has_one_result(api: Api) -> None:
    @more
    @given(cases(api))
    def paired(case: tuple[list[Item], dict[str, Item], Item]) -> None:
        history, evidence, _ = case
        result = normalize(history, api=api, evidence=evidence)
        assert not Counter(results(api, result.history)) - Counter(calls(api, result.history))
        assert_legal(api, result, {})

    paired()


@every_api
def test_nothing_recorded_is_lost_and_undo_is_exact(api: Api) -> None:
    @more
    @given(cases(api), st.sampled_from(["close", "keep"]))
    def kept(case: tuple[list[Item], dict[str, Item], Item], live: Any) -> None:
        history, evidence, request = case
        before = copy.deepcopy(history)
        told = copy.deepcopy((evidence, request))
        result = normalize(history, api=api, evidence=evidence, request=request, live=live)
        everything = everything_in(result)
        lost = [text for text in texts_of(api, history) if text not in everything]
        assert lost == []
        undone = result.undo()
        assert len(undone) == len(history)
        assert all(old is new for old, new in zip(history, undone, strict=True))
        assert history == before
        assert (evidence, request) == told
        assert bool(result.changes) == (result.history is not history)

    kept()


@every_api
def test_the_account_is_json_and_names_real_places(api: Api) -> None:
    @given(cases(api))
    def readable(case: tuple[list[Item], dict[str, Item], Item]) -> None:
        history, evidence, request = case
        result = normalize(history, api=api, evidence=evidence, request=request)
        json.dumps(list(result.history), allow_nan=False)
        json.dumps(result.to_sendable().hints)
        for change in result.changes:
            json.dumps(change.removed, allow_nan=False)
            assert _at(api, history, change.path), change
            assert change.path_after is None or _at(api, result.history, change.path_after), change
            assert change.note
        again = {(c.kind, c.path, c.path_after, c.note) for c in result.changes}
        assert again == {(c.kind, c.path, c.path_after, c.note) for c in result.changes}

    readable()


def _at(api: Api, history: Sequence[Any], path: str) -> bool:
    """Whether a path leads to something; the place just behind the end counts as one."""
    root, *steps = path.split(".")
    assert root == _field(api)
    value: Any = history
    for step in steps:
        if isinstance(value, dict):
            if step not in value:
                return False
            value = value[step]
        else:
            if int(step) == len(value):
                return step == steps[-1]
            value = value[int(step)]
    return True


@every_api
def test_untouched_messages_are_the_same_objects(api: Api) -> None:
    @given(damaged_history(api))
    def shared(history: list[Item]) -> None:
        result = normalize(history, api=api)
        kept = {id(item) for item in history} & {id(item) for item in result.history}
        replaced = sum(len(splice.before) for splice in result.splices)
        assert len(kept) >= len({id(item) for item in history}) - replaced
        for splice in result.splices:
            assert splice.before == tuple(history[splice.start :][: len(splice.before)])
            assert splice.after == tuple(result.history[splice.start_after :][: len(splice.after)])

    shared()


# --- outcomes and evidence -----------------------------------------------------------------------


@every_api
def test_each_call_and_occurrence_has_one_outcome(api: Api) -> None:
    @more
    @given(cases(api))
    def counted(case: tuple[list[Item], dict[str, Item], Item]) -> None:
        history, evidence, _ = case
        result = normalize(history, api=api, evidence=evidence)
        told = [(entry.call_id, entry.occurrence) for entry in result.outcomes]
        assert len(told) == len(set(told))
        for call_id, occurrence in told:
            assert occurrence == 1 or (call_id, occurrence - 1) in told
        # A renamed call keeps the id it was recorded under; a copy of a call is told once.
        recorded = Counter(call_ids(api, history))
        for call_id, count in Counter(call_id for call_id, _ in told).items():
            assert count <= max(recorded[call_id], 1)
        left = [
            family
            for family, _ in calls(api, result.history)
            if family in ("tool", "function_call")
        ]
        assert len(told) >= len(left)
        assert set(result.pending) <= {call_id for call_id, _ in told}

    counted()


@st.composite
def unanswered_cases(draw: st.DrawFn, api: Api) -> tuple[list[Item], dict[str, Item]]:
    """A history without any result, and a word about some of its calls."""
    asked = valid_history(api).filter(lambda history: bool(call_ids(api, history)))
    history = without_results(api, draw(asked))
    waiting = sorted(set(call_ids(api, history)))
    by_id = {call_id: st.none() | facts for call_id in waiting}
    by_occurrence = {f"{call_id}#2": facts for call_id in waiting}
    said = draw(st.fixed_dictionaries(by_id, optional=by_occurrence))
    return history, {call_id: fact for call_id, fact in said.items() if fact is not None}


@every_api
def test_without_a_recorded_result_the_evidence_is_the_outcome(api: Api) -> None:
    decided = Counter[str]()

    @settings(max_examples=120)
    @given(unanswered_cases(api))
    def decides(case: tuple[list[Item], dict[str, Item]]) -> None:
        history, evidence = case
        result = normalize(history, api=api, evidence=evidence)
        for entry in result.outcomes:
            by_occurrence = evidence.get(f"{entry.call_id}#{entry.occurrence}")
            known = by_occurrence or evidence.get(entry.call_id)
            status = known["status"] if known else None
            decided[str(status)] += 1
            if status == "running":
                assert entry.call_id in result.pending
                assert not result.sendable
                assert entry.status == "unknown"
            elif known is None or status == "placeholder":
                # A request for approval that nobody decided: its tool did not run.
                asked = ("approval", entry.call_id) in calls(api, history)
                assert entry.status == ("not_started" if asked else "unknown")
                assert entry.synthetic
            else:
                assert entry.outcome == parse_outcome(known)
                assert entry.synthetic

    decides()
    assert set(decided) == {*_STATUSES, "None"}


@every_api
def test_live_keep_leaves_the_last_turn_open(api: Api) -> None:
    seen = Counter[bool]()

    @more
    @given(st.one_of(valid_history(api), damaged_history(api)))
    def keeps(history: list[Item]) -> None:
        result = normalize(history, api=api, live="keep")
        seen[bool(result.pending)] += 1
        assert_legal(api, result, {})
        if result.pending:
            assert not result.sendable
            assert violations(api, result.history)
        assert normalize(result.history, api=api, live="keep").history is result.history
        closed = normalize(result.history, api=api)
        assert closed.pending == ()
        if result.pending:
            assert closed.history is not result.history
        elif result.sendable:
            assert closed.history is result.history

    keeps()
    assert seen[True]
    assert seen[False]


# --- other processes -----------------------------------------------------------------------------


def digest(batch: list[Any]) -> str:
    """All that is told about a batch of cases, as one hash."""
    told = hashlib.sha256()
    for api, history, evidence, request in batch:
        checked = check(history, api=api, request=request)
        result = normalize(history, api=api, evidence=evidence, request=request)
        for part in (
            json.dumps(list(result.history)),
            repr(checked),
            repr(result.changes),
            repr(result.outcomes),
            repr((result.pending, result.sendable, result.hints)),
        ):
            told.update(part.encode())
    return told.hexdigest()


def test_other_processes_give_the_same_bytes(tmp_path: Path) -> None:
    batch: list[Any] = []

    @given(st.sampled_from(APIS).flatmap(lambda api: st.tuples(st.just(api), cases(api))))
    def collect(drawn: tuple[Api, tuple[list[Item], dict[str, Item], Item]]) -> None:
        batch.append([drawn[0], *drawn[1]])

    settings(max_examples=110)(collect)()
    assert len(batch) > 100
    drawn = tmp_path / "batch.json"
    drawn.write_text(json.dumps(batch))
    here = digest(json.loads(drawn.read_text()))
    for seed in ("0", "1", "4242"):
        there = subprocess.run(
            [sys.executable, __file__, str(drawn)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert there.stderr == ""
        assert there.stdout.strip() == here, f"PYTHONHASHSEED={seed}"


if __name__ == "__main__":
    print(digest(json.loads(Path(sys.argv[1]).read_text())))
