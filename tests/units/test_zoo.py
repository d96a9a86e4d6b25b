"""Every beast, stopped on Linux as root and as an ordinary user, with and without a cgroup."""

from __future__ import annotations

import json
import os
import shutil
import uuid

import pytest
from units.beasts import ATTACKER_NAMES, NAMES
from units.conftest import PEOPLE
from units.truth import clean, marked, survivors

from stopkit.units.broker import cgroup_base
from stopkit.units.group import GroupEnd, Tracker
from stopkit.units.testing import FakeKernel

WAYS = [(person, cgroup) for person in PEOPLE for cgroup in (True, False)]


def visit(person, beasts, directory, *, cgroup, python=None):
    """Run a host for the beasts; its report of each, and what was really left."""
    marks = {beast: uuid.uuid4().hex for beast in beasts}
    job = {"beasts": marks, "dir": str(directory), "cgroup": cgroup, "python": python}
    found = {}
    host = person.popen("zoo_host.py", json.dumps(job))
    try:
        out, _ = host.communicate(timeout=100)
        for line in out.splitlines():
            said = json.loads(line)
            found[said["beast"]] = said
        for beast, mark in marks.items():
            found[beast]["survivors"] = survivors(mark)
    finally:
        host.kill()
        host.wait()
        for mark in marks.values():
            clean(mark)
    assert host.returncode == 0
    return found


@pytest.mark.parametrize(
    ("person", "cgroup"), WAYS, ids=lambda value: getattr(value, "name", value)
)
def test_nothing_survives_and_the_report_says_so(person, cgroup, open_dir):
    zoo = visit(person, NAMES, open_dir, cgroup=cgroup)
    assert {beast: complaint for beast in NAMES if (complaint := complaint_of(zoo[beast]))} == {}
    assert set(zoo) == set(NAMES)
    base = cgroup_base()
    ours = {f"stopkit-{said['report']['id']}" for said in zoo.values()}
    assert [name for name in os.listdir(base or "/") if name in ours] == []
    levels = {said["report"]["process"]["containment"] for said in zoo.values()}
    assert len(levels) == 1
    if not cgroup:
        assert levels == {"subreaper"}


def complaint_of(said):
    """What is wrong with one beast's end; empty if all is as it should be."""
    facts = said["report"]["process"]
    wanted = {
        "verified_empty": "yes",
        "survivors": [],
        "guards_lost": [],
        "output_complete": True,
        "descriptors_released": True,
    }
    wrong = {name: facts[name] for name, value in wanted.items() if facts[name] != value}
    if said["left"] or said["survivors"]:
        wrong["left"] = said["left"], said["survivors"]
    return wrong


@pytest.mark.parametrize("cgroup", [True, False])
@pytest.mark.parametrize("beast", ATTACKER_NAMES)
def test_a_beast_that_attacks_its_guard_is_ended_all_the_same(person, beast, cgroup, open_dir):
    said = visit(person, [beast], open_dir, cgroup=cgroup)[beast]
    facts = said["report"]["process"]
    assert said["survivors"] == {}
    assert facts["survivors"] == []
    lost = {
        "warden_killer": ["warden"],
        "warden_stopper": ["warden"],
        "broker_killer": ["broker"],
        "both_killer": ["warden", "broker"],
    }[beast]
    assert facts["guards_lost"] == lost
    if beast == "both_killer" and facts["containment"] != "cgroup":
        # Nobody can vouch for it any more.
        assert facts["verified_empty"] == "unknown"
    else:
        assert facts["verified_empty"] == "yes"


@pytest.fixture
def set_uid_python(open_dir):
    """An interpreter that makes its process root's, for the ordinary user of the tests alone."""
    if os.geteuid() != 0 or len(PEOPLE) < 2:
        # Only root can make one, and only for somebody else to run.
        yield None
        return
    ordinary = PEOPLE[1]
    path = open_dir / "python"
    shutil.copy(os.path.realpath(ordinary.python), path)
    os.chown(path, 0, ordinary.uid)
    path.chmod(0o4710)
    yield str(path)
    path.unlink()


def test_a_child_of_another_user_is_reported_never_called_gone(set_uid_python, open_dir):
    """The kernel forbids the signal: the report names who is left, and does not say `empty`."""
    if set_uid_python is None:
        return no_other_user()
    said = visit_other_user(set_uid_python, open_dir)
    facts = said["report"]["process"]
    assert facts["verified_empty"] == "no"
    assert [left["pid"] for left in facts["survivors"]] == said["left"]
    (left,) = facts["survivors"]
    assert (left["uid"], left["reason"]) == (0, "not_permitted")
    assert left["start"] > 0
    assert any(facts["pid"] in sent["refused"] for sent in facts["signals"])
    assert said["report"]["outcome"]["status"] == "unknown"
    assert any(str(left["pid"]) in words for words in said["report"]["unconfirmed"])
    return None


def visit_other_user(python, directory):
    mark = uuid.uuid4().hex
    job = {"beasts": {"other_user": mark}, "dir": str(directory), "cgroup": False, "python": python}
    host = PEOPLE[1].popen("zoo_host.py", json.dumps(job))
    try:
        out, _ = host.communicate(timeout=60)
        said = json.loads(out)
        # The host may not look into it, so the marks are looked at from here.
        said["left"] = sorted(marked(mark))
        return said
    finally:
        host.kill()
        host.wait()
        clean(mark)


def no_other_user():
    """Without root the same is held by the fake kernel alone."""
    kernel = FakeKernel()
    leader = kernel.spawn(uid=0)
    tracker = Tracker(leader, own_group=1)
    end = GroupEnd(kernel, tracker, 0.0, grace=0.0, verify=0.1)
    assert end.step(0.0, 0.0) is None
    ended = end.step(1.0, 0.0)
    assert ended is not None
    assert (ended.verified_empty, ended.survivors[0].reason) == ("no", "not_permitted")
