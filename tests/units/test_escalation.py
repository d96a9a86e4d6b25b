"""TERM, grace, KILL as a pure machine; and the guard of macOS and the BSDs on a fake kernel."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from units.test_process import marked_env, ready, run
from units.truth import survivors

from stopkit.stop import StopPolicy
from stopkit.units import ProcessUnit
from stopkit.units import process as process_module
from stopkit.units.errors import UnitNotStarted, UnitUnsupported
from stopkit.units.group import GroupEnd, GroupGuard, Tracker, deliver
from stopkit.units.ps import PsKernel, parse
from stopkit.units.testing import FakeKernel
from stopkit.units.warden import Escalation, Proc

TERM, KILL, CONT = signal.SIGTERM, signal.SIGKILL, signal.SIGCONT


def proc(pid, start=1, state="S"):
    return Proc(pid, 1, pid, pid, start, state, "p")


def test_each_is_asked_once_and_killed_once():
    plan = Escalation(0.0, grace=1.0, verify=1.0)
    one, two = proc(1), proc(2)
    assert plan.step(0.0, [one]) == [(one, TERM)]
    assert plan.step(0.1, [one, two]) == [(two, TERM)]
    assert plan.step(1.0, [one, two]) == [(one, KILL), (two, KILL)]
    assert plan.step(1.1, [one, two]) == []
    # The same pid with another start time is another process.
    again = proc(1, start=2)
    assert plan.step(1.2, [again]) == [(again, KILL)]


def test_a_stopped_process_is_let_go_on_to_obey():
    plan = Escalation(0.0, grace=1.0, verify=1.0)
    halted = proc(1, state="T")
    assert plan.step(0.0, [halted]) == [(halted, TERM), (halted, CONT)]


def test_a_program_is_asked_although_the_shell_it_was_forked_from_had_been():
    plan = Escalation(0.0, grace=1.0, verify=1.0)
    shell = proc(1)
    program = shell._replace(name="sleep")
    assert plan.step(0.0, [shell]) == [(shell, TERM)]
    assert plan.step(0.1, [program]) == [(program, TERM)]
    assert plan.step(0.2, [program]) == []
    assert plan.step(1.0, [program]) == [(program, KILL)]


def test_what_was_refused_is_tried_again():
    plan = Escalation(0.0, grace=0.0, verify=1.0)
    one = proc(1)
    plan.step(0.0, [one])
    plan.refused(one)
    assert plan.step(0.1, [one]) == [(one, KILL)]


@given(
    grace=st.floats(0, 60),
    verify=st.floats(0, 60),
    presses=st.lists(st.tuples(st.floats(0, 90), st.floats(0, 60), st.floats(0, 60)), max_size=6),
)
def test_no_press_moves_a_time_further_away(grace, verify, presses):
    plan = Escalation(0.0, grace=grace, verify=verify)
    for now, shorter, check in sorted(presses):
        before = plan.grace_until, plan.expires
        plan.press(now, grace=shorter, verify=check)
        assert plan.grace_until <= before[0]
        assert plan.expires <= before[1]


@given(
    steps=st.lists(
        st.tuples(st.floats(0, 3), st.sets(st.tuples(st.integers(1, 6), st.integers(1, 2)))),
        max_size=12,
    )
)
def test_every_member_is_signalled_and_none_is_killed_before_its_time(steps):
    plan = Escalation(0.0, grace=1.0, verify=1.0)
    killed = set()
    for now, members in sorted(steps, key=lambda step: step[0]):
        living = [proc(pid, start) for pid, start in sorted(members)]
        due = plan.step(now, living)
        for target, number in due:
            assert target in living
            assert number == (KILL if now >= 1.0 else TERM)
            if number == KILL:
                assert target.identity not in killed
                killed.add(target.identity)
        if now >= 1.0:
            assert {member.identity for member in living} <= killed
        assert 0 <= plan.delay(now) <= 0.01


def follow(kernel, leader, *, grace=0.2, verify=0.2, during=lambda _now: None):
    """A whole end on a fake kernel and a fake clock."""
    tracker = Tracker(leader, own_group=1)
    end = GroupEnd(kernel, tracker, 0.0, grace, verify)
    now = 0.0
    while now < 2.0:
        ended = end.step(now, 0.0)
        if ended is not None:
            return ended
        during(now)
        now += max(0.01, end.escalation.delay(now))
    raise AssertionError("the end never came")


def test_a_group_is_signalled_as_one():
    kernel = FakeKernel()
    leader = kernel.spawn()
    kernel.spawn(parent=leader)
    ended = follow(kernel, leader)
    assert kernel.table == {}
    assert kernel.group_signals == [(leader.pgid, TERM)]
    assert ended.signals[0].pids == (leader.pid, leader.pid + 1)
    # Something may have detached between two looks: this guard never vouches for emptiness.
    assert ended.verified_empty == "unknown"


def test_a_refused_group_signal_falls_back_to_its_members():
    """macOS: EPERM for the group as soon as one member is somebody else's."""
    kernel = FakeKernel()
    leader = kernel.spawn()
    other = kernel.spawn(parent=leader, uid=0)
    child = kernel.spawn(parent=leader)
    ended = follow(kernel, leader)
    assert kernel.group_signals == []
    assert list(kernel.table) == [other.pid]
    assert ended.verified_empty == "no"
    (left,) = ended.survivors
    assert (left.pid, left.uid, left.reason) == (other.pid, 0, "not_permitted")
    assert ended.signals[0].pids == (leader.pid, child.pid)
    assert ended.signals[0].refused == (other.pid,)


def test_members_are_followed_into_other_groups_and_sessions():
    kernel = FakeKernel()
    leader = kernel.spawn()
    moved = kernel.spawn(parent=leader, new_session=True)
    tracker = Tracker(leader, own_group=1)
    tracker.look(kernel.processes())
    # Its parent goes; it was seen before that, and its session is known from now on.
    kernel.end(leader.pid)
    kernel.spawn(parent=kernel.look(moved.pid))
    found = tracker.look(kernel.processes())
    assert {member.pid for member in found} == {moved.pid, moved.pid + 1}


def test_a_daemon_that_nobody_saw_is_not_claimed_to_be_gone():
    kernel = FakeKernel()
    leader = kernel.spawn()
    tracker = Tracker(leader, own_group=1)
    middle = kernel.spawn(parent=leader, new_session=True)
    escaped = kernel.spawn(parent=middle, new_session=True)
    kernel.end(middle.pid)
    end = GroupEnd(kernel, tracker, 0.0, grace=0.1, verify=0.1)
    assert end.step(0.0, 0.0) is None
    assert end.step(0.05, 0.0) is None
    ended = end.step(0.06, 0.0)
    assert escaped.pid in kernel.table
    assert ended.verified_empty == "unknown"


def test_one_that_ignores_the_request_is_killed_and_one_that_cannot_die_is_named():
    kernel = FakeKernel()
    leader = kernel.spawn(obeys=[KILL])
    stuck = kernel.spawn(parent=leader, obeys=[])
    ended = follow(kernel, leader)
    assert [sent.signal for sent in ended.signals] == [TERM, KILL]
    assert [left.pid for left in ended.survivors] == [stuck.pid]
    assert ended.survivors[0].reason == "deadline"


def test_what_appears_on_the_request_is_found():
    kernel = FakeKernel()
    born = []

    def fork(number):
        if number == TERM and not born:
            born.append(kernel.spawn(parent=kernel.look(leader.pid), obeys=[KILL]))

    leader = kernel.spawn(on_signal=fork)
    follow(kernel, leader)
    assert born
    assert kernel.table == {}


def test_our_own_group_is_never_signalled():
    kernel = FakeKernel()
    leader = kernel.spawn()
    with pytest.raises(ValueError, match="own process group"):
        Tracker(leader, own_group=leader.pgid)
    assert PsKernel().send_group(os.getpgid(0), 0) == "refused"
    assert PsKernel().send_group(0, 0) == "refused"


def test_a_recycled_pid_is_left_alone():
    kernel = FakeKernel()
    leader = kernel.spawn()
    other = proc(leader.pid, start=leader.start + 5)
    assert deliver(kernel, [(other, TERM)], []) == [(other, TERM, "gone")]
    assert leader.pid in kernel.table


@given(st.data())
def test_every_tree_that_was_seen_is_ended(data):
    """Whatever a tree looks like: what may be signalled is gone, what may not is reported."""
    kernel = FakeKernel()
    leader = kernel.spawn()
    members = [leader]
    for _ in range(data.draw(st.integers(0, 8))):
        members.append(
            kernel.spawn(
                parent=data.draw(st.sampled_from(members)),
                uid=data.draw(st.sampled_from([501, 501, 501, 0])),
                new_group=data.draw(st.booleans()),
                new_session=data.draw(st.booleans()),
                obeys=data.draw(st.sampled_from([[TERM, KILL], [KILL]])),
            )
        )
    ended = follow(kernel, leader)
    assert {left.pid for left in ended.survivors} == set(kernel.table)
    assert all(entry.uid == 0 for entry in kernel.table.values())
    assert ended.verified_empty == ("no" if kernel.table else "unknown")


def test_a_line_of_ps():
    line = "  123   1  120   501 Ss+  Mon Nov 30 08:34:33 2026 /usr/bin/some thing"
    found, uid = parse(line)
    assert (found.pid, found.ppid, found.pgid, uid) == (123, 1, 120, 501)
    assert (found.state, found.name) == ("S", "/usr/bin/some thing")
    assert parse("USER PID") is None
    assert parse("x 1 1 1 S Mon Nov 30 08:34:33 2026 sh") is None


needs_ps = shutil.which("ps")


def test_the_guard_of_macos_ends_a_real_tree(mark):
    assert needs_ps, "the BSD guard needs ps"

    async def main():
        unit = ProcessUnit.shell(
            "sleep 60 & sleep 61 & echo ready; sleep 62",
            env=marked_env(mark),
            stop=StopPolicy(grace=1.0),
        )
        unit._make_guard = lambda: GroupGuard(PsKernel())
        unit._kernel = PsKernel()
        async with unit:
            await ready(unit)
            return await unit.stop()

    report = run(main)
    assert survivors(mark) == {}
    assert report.process.containment == "group"
    assert report.process.verified_empty == "unknown"
    assert report.process.exit.signal == TERM
    assert report.process.members_seen >= 2
    assert "whether anything of the process tree is left is not known" in report.unconfirmed


def test_the_guard_of_macos_says_why_nothing_started():
    async def main():
        for options, where in (({}, "exec"), ({"cwd": "/no/such"}, "cwd")):
            argv = ["/no/such/program"] if where == "exec" else ["/bin/true"]
            unit = ProcessUnit(
                argv, guard=lambda: GroupGuard(PsKernel()), kernel=PsKernel(), **options
            )
            with pytest.raises(UnitNotStarted) as caught:
                await unit.start()
            assert caught.value.where == where

    run(main)


@pytest.mark.parametrize("platform", ["win32", "emscripten"])
def test_other_platforms_are_refused_with_a_type(monkeypatch, platform):
    monkeypatch.setattr(process_module, "_PLATFORM", platform)

    async def main():
        with pytest.raises(UnitUnsupported) as caught:
            await ProcessUnit(["/bin/true"]).start()
        return caught.value

    assert asyncio.run(main()).code == "unsupported"
