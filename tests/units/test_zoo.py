"""Every beast, stopped on Linux as root and as an ordinary user, with and without a cgroup."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import uuid
from pathlib import Path

import pytest
from units.beasts import ATTACKER_NAMES, NAMES
from units.conftest import PEOPLE
from units.truth import clean, survivors

from stopkit.units.broker import cgroup_base

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


@pytest.fixture(scope="module", params=WAYS, ids=lambda way: f"{way[0].name}-{way[1]}")
def zoo(request):
    person, cgroup = request.param
    # pytest's own directories are closed to other users.
    directory = Path(tempfile.gettempdir()) / f"stopkit-zoo-{uuid.uuid4().hex}"
    directory.mkdir()
    directory.chmod(0o777)
    yield visit(person, NAMES, directory, cgroup=cgroup)
    shutil.rmtree(directory)


@pytest.mark.parametrize("beast", NAMES)
def test_nothing_survives_and_the_report_says_so(zoo, beast):
    said = zoo[beast]
    facts = said["report"]["process"]
    assert said["left"] == []
    assert said["survivors"] == {}
    assert facts["verified_empty"] == "yes"
    assert facts["survivors"] == []
    assert facts["guards_lost"] == []
    assert facts["output_complete"]
    assert facts["descriptors_released"]


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


def test_a_cgroup_is_used_where_one_can_be_made(zoo):
    levels = {said["report"]["process"]["containment"] for said in zoo.values()}
    assert levels in ({"cgroup"}, {"subreaper"})


def test_no_cgroup_is_left_behind(zoo):
    base = cgroup_base()
    made = [] if base is None else [name for name in os.listdir(base) if "stopkit-" in name]
    ours = {said["report"]["id"] for said in zoo.values()}
    assert [name for name in made if name.removeprefix("stopkit-") in ours] == []
