"""The state machines: every legal and every illegal move, and what they decide."""

from __future__ import annotations

import inspect
import itertools
import json
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stopkit import errors
from stopkit.errors import (
    DecisionRefused,
    ErrorEnvelope,
    IllegalTransition,
    StopkitError,
)
from stopkit.events import EVENT_KINDS, Event
from stopkit.operation import (
    Absent,
    Done,
    Go,
    NoAnswer,
    Operation,
    Refuse,
    Replay,
    admit,
    allocate_key,
    fingerprint,
    outcome_of_lost_worker,
    resettle_by_answer,
    resettle_by_person,
)
from stopkit.outcome import STATUSES, Effects, Stopped, Succeeded, Unknown
from stopkit.run import (
    RUN_STATUSES,
    TERMINAL,
    TRANSITIONS,
    USER_ACTIONS,
    USER_MESSAGES,
    move,
    requestable,
)
from stopkit.steer import STEER_ENDS, STEER_STATUSES, STEER_TRANSITIONS, Steer
from stopkit.stop import CAUSE_KINDS, PHASES, Cause, StopPlan, StopPolicy, treatment


@pytest.mark.parametrize(("current", "to"), list(itertools.product(RUN_STATUSES, RUN_STATUSES)))
def test_run_table(current, to):
    if to in TRANSITIONS[current]:
        assert move(current, to) == to
    else:
        with pytest.raises(IllegalTransition) as caught:
            move(current, to, run="r1")
        assert caught.value.run_status == current
        assert caught.value.correlation_id == "r1"


def test_cancelled_is_reached_only_after_the_clean_up():
    before = {status for status, after in TRANSITIONS.items() if "cancelled" in after}
    assert before == {"cancelling", "needs_reconciliation"}


def test_only_work_that_may_go_on_can_be_asked_to_stop():
    assert {status for status in RUN_STATUSES if requestable(status)} == {"queued", "running"}
    assert all(not TRANSITIONS[status] for status in TERMINAL)


def test_every_status_has_words_and_actions():
    assert set(USER_MESSAGES) == set(USER_ACTIONS) == set(RUN_STATUSES)
    words = " ".join(USER_MESSAGES.values()).lower()
    assert "undone" not in words
    assert "revert" not in words
    assert USER_MESSAGES["cancel_requested"] == "Stopping work"


def test_no_two_vocabularies_share_a_generic_stopped():
    families = [RUN_STATUSES, STATUSES, STEER_STATUSES, get_args(Effects), CAUSE_KINDS]
    assert sum("stopped" in family for family in families) == 1
    assert "stopped" in STATUSES


@pytest.mark.parametrize(("current", "to"), list(itertools.product(STEER_STATUSES, STEER_STATUSES)))
def test_steer_table(current, to):
    steer = Steer("s1", "r1", "hurry", current)
    if to in STEER_TRANSITIONS[current]:
        assert steer.move(to, "request 2 carried it").status == to
    else:
        with pytest.raises(IllegalTransition):
            steer.move(to, "request 2 carried it")


@pytest.mark.parametrize("status", STEER_STATUSES)
def test_a_steer_always_ends(status):
    ended = Steer("s1", "r1", "hurry", status).end()
    assert ended.status in STEER_ENDS
    assert (ended.status == "returned") == (status in ("queued", "returned"))


def test_a_steer_is_applied_only_with_a_proof():
    with pytest.raises(IllegalTransition):
        Steer("s1", "r1", "hurry", "sent").move("applied")


def test_a_stop_goes_through_its_phases_in_one_order():
    plan = StopPlan.begin(Cause("user", 0.0), StopPolicy(), 10.0)
    for at, phase in enumerate(PHASES[1:], start=11):
        for other in PHASES:
            if other != phase:
                with pytest.raises(IllegalTransition):
                    plan.enter(other, at)
        plan = plan.enter(phase, at)
    assert [phase for phase, _ in plan.entered] == list(PHASES)


seconds = st.floats(0, 1000, allow_nan=False)


@given(
    grace=seconds,
    verify=seconds,
    output=seconds,
    deadline=st.none() | st.floats(0.001, 1000),
    presses=st.lists(seconds, max_size=6),
)
def test_no_press_moves_a_time_forward(grace, verify, output, deadline, presses):
    policy = StopPolicy(
        grace=grace, verify_wait=verify, output_wait=output, ack_wait=0, deadline=deadline
    )
    plan = StopPlan.begin(Cause("user", 0.0), policy, 0.0)
    now = 0.0
    for wait in presses:
        now += wait
        pressed = plan.press(now)
        assert pressed.grace_until <= plan.grace_until
        assert pressed.verify_until <= plan.verify_until
        assert pressed.deadline_at <= plan.deadline_at
        assert pressed.presses == plan.presses + 1
        assert pressed.cause is plan.cause
        plan = pressed
    assert plan.grace_until <= plan.verify_until <= plan.deadline_at or policy.total < 1e-9
    assert plan.deadline_at <= policy.total


def test_the_third_press_ends_the_grace():
    plan = StopPlan.begin(Cause("user", 0.0), StopPolicy(), 0.0).press(1.0)
    assert plan.grace_until == 1.5
    assert not plan.forced
    plan = plan.press(1.1)
    assert plan.grace_until == 1.1
    assert plan.forced
    assert replace(plan.press(5.0), presses=3) == plan


@pytest.mark.parametrize(
    ("effect", "dispatched", "background", "expected"),
    [
        ("read", False, "stop", "cut"),
        ("read", True, "stop", "cut"),
        ("write", False, "stop", "cut"),
        ("write", True, "stop", "grace"),
        ("cleanup", False, "stop", "grace"),
        ("detached", False, "stop", "cut"),
        ("detached", True, "stop", "grace"),
        ("detached", True, "keep", "keep"),
        ("write", True, "keep", "grace"),
    ],
)
def test_each_effect_class_has_its_own_treatment(effect, dispatched, background, expected):
    policy = StopPolicy(background=background)
    assert treatment(effect, dispatched=dispatched, policy=policy) == expected


@pytest.mark.parametrize("bad", [-1.0, float("inf"), float("nan")])
def test_a_policy_has_only_finite_times(bad):
    with pytest.raises(ValueError, match="finite"):
        StopPolicy(grace=bad)
    with pytest.raises(ValueError, match="finite"):
        StopPolicy(deadline=bad)


def test_a_child_run_keeps_the_words_of_its_parents_cause():
    told = Cause("user", 1.0, "ann", "enough").for_child(2.0)
    assert told.kind == "parent"
    assert "enough" in (told.words or "")


parts = st.text(max_size=8)


@given(st.tuples(parts, st.integers(0, 9), parts, st.integers(1, 9)), st.data())
def test_keys_tell_all_calls_apart(call, data):
    other = data.draw(st.tuples(parts, st.integers(0, 9), parts, st.integers(1, 9)))
    key = allocate_key(*call)
    assert key == allocate_key(*call)
    assert (key == allocate_key(*other)) == (call == other)
    assert key.startswith("op_")
    assert key[3:].isalnum()
    assert key.isascii()
    assert len(key) == 29


def test_a_fingerprint_does_not_depend_on_the_order_of_names():
    assert fingerprint("t", {"a": 1, "b": 2}) == fingerprint("t", {"b": 2, "a": 1})
    assert fingerprint("t", {"a": 1}) != fingerprint("u", {"a": 1})
    assert fingerprint("t", {"a": 1}) != fingerprint("t", {"a": "1"})


def an_operation(**changes):
    operation = Operation(
        key="op_1",
        run="r1",
        request=1,
        call_id="c1",
        occurrence=1,
        name="pay",
        arguments={"amount": 3},
        fingerprint=fingerprint("pay", {"amount": 3}),
        effect="write",
        stage="settled",
        intended_at=1.0,
        dispatched_at=2.0,
        first_dispatched_at=2.0,
        outcome=Unknown(),
    )
    return replace(operation, **changes)


def test_admission():
    mark = fingerprint("pay", {"amount": 3})

    def ask(earlier, *, mark=mark, now=10.0, retention=None):
        return admit(earlier, fingerprint=mark, now=now, retention=retention)

    assert ask(None) == Go()
    other = ask(an_operation(), mark=fingerprint("pay", {"amount": 4}))
    assert isinstance(other, Refuse)
    assert other.code == "key_conflict"
    assert other.outcome.status == "not_started"
    open_ = ask(an_operation(outcome=None, stage="dispatched"))
    assert isinstance(open_, Refuse)
    assert open_.code == "in_progress"
    unverified = ask(an_operation())
    assert isinstance(unverified, Refuse)
    assert unverified.code == "reconcile_first"
    done = ask(an_operation(outcome=Succeeded(output="paid")))
    assert isinstance(done, Replay)
    assert done.outcome.output == "paid"
    absent = an_operation(outcome=Unknown(effects="confirmed_absent"))
    assert ask(absent, retention=5.0) == Go(again=True)


def test_past_retention_a_key_is_not_replayed_on_a_persons_word():
    accepted = an_operation(decided_by="ann")
    mark = accepted.fingerprint
    late = admit(accepted, fingerprint=mark, now=100.0, retention=60.0)
    assert isinstance(late, Refuse)
    assert late.code == "key_past_retention"
    assert admit(accepted, fingerprint=mark, now=50.0, retention=60.0) == Go(again=True)


def test_only_evidence_or_a_named_person_settles_what_is_unknown():
    operation = an_operation()
    done = resettle_by_answer(operation, Done("paid", "receipt 7"))
    assert isinstance(done, Succeeded)
    assert "receipt 7" in done.evidence
    absent = resettle_by_answer(operation, Absent())
    assert isinstance(absent, Unknown)
    assert absent.effects == "confirmed_absent"
    assert resettle_by_answer(operation, NoAnswer("down")) is None
    said = resettle_by_person(operation, "happened", by="ann", words="saw it")
    assert isinstance(said, Succeeded)
    assert any("ann" in line for line in said.evidence)
    assert resettle_by_person(operation, "did_not_happen", by="ann", words="").effects == (
        "confirmed_absent"
    )
    assert resettle_by_person(operation, "accept_unknown", by="ann", words="").status == "unknown"
    with pytest.raises(DecisionRefused):
        resettle_by_person(operation, "happened", by=" ", words="")
    known = an_operation(outcome=Succeeded())
    with pytest.raises(DecisionRefused):
        resettle_by_person(known, "did_not_happen", by="ann", words="")


def test_what_a_ledger_row_proves_when_the_worker_is_gone():
    before = an_operation(outcome=None, stage="intended", dispatched_at=None)
    assert outcome_of_lost_worker(before).effects == "confirmed_absent"
    after = an_operation(outcome=None, stage="dispatched")
    assert outcome_of_lost_worker(after).effects == "unverified"
    assert after.unverified
    read = an_operation(outcome=None, stage="intended", effect="read")
    assert outcome_of_lost_worker(read).status == "unknown"
    ended = an_operation(outcome=Stopped(effects="none"))
    assert outcome_of_lost_worker(ended) == ended.outcome


def all_errors():
    return [
        error
        for _, error in inspect.getmembers(errors, inspect.isclass)
        if issubclass(error, StopkitError)
    ]


@pytest.mark.parametrize("error", all_errors())
def test_every_error_has_its_envelope(error):
    envelope = error("told", run_status="running", correlation_id="r1").envelope()
    assert isinstance(envelope, ErrorEnvelope)
    assert json.loads(envelope.to_json()) == {
        "code": error.code,
        "message": "told",
        "retry_safe": error.retry_safe,
        "run_status": "running",
        "correlation_id": "r1",
    }


def test_codes_are_distinct_and_the_tree_is_printed_on_top():
    found = all_errors()
    assert len({error.code for error in found}) == len(found)
    assert errors.__doc__ is not None
    for error in found:
        assert error.__name__ in errors.__doc__


@given(st.sampled_from(EVENT_KINDS), st.integers(1, 9), st.dictionaries(st.text(), st.integers()))
def test_events_survive_json(kind, seq, data):
    event = Event("r1", seq, 1.5, kind, data)
    assert Event.from_json(event.to_json()) == event


@pytest.mark.parametrize("text", ["{}", "[]", '{"run":"r","seq":1,"at":0,"kind":"x","data":{}}'])
def test_what_is_no_event_is_refused(text):
    with pytest.raises(ValueError, match="event"):
        Event.from_json(text)
