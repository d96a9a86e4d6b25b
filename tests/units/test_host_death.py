"""The host is killed with SIGKILL, in every phase of a unit's life."""

from __future__ import annotations

import contextlib
import json
import os
import signal

import pytest
from units.truth import alive, marked, survivors, until

PHASES = {
    "before_send": "daemon",
    "after_send": "daemon",
    "started": "daemon",
    "running": "env_scrubber",
    "forked": "daemon",
    "stopping": "slow_to_obey",
    "ended": "daemon",
}


def doom(person, mark, directory, phase, beast, *, cgroup):
    # The host's own argv must not bear the mark, nor that of a child it forks.
    ready = str(directory / "ready")
    job = {"phase": phase, "mark": mark[::-1], "ready": ready, "cgroup": cgroup, "beast": beast}
    host = person.popen("doomed_host.py", json.dumps(job))
    said = host.stdout.readline()
    host.wait(timeout=60)
    host.stdout.close()
    assert host.returncode == -signal.SIGKILL
    return json.loads(said) if said else {}


@pytest.mark.parametrize("cgroup", [True, False])
@pytest.mark.parametrize("phase", PHASES)
def test_nothing_outlives_its_host(person, mark, open_dir, phase, cgroup):
    said = doom(person, mark, open_dir, phase, PHASES[phase], cgroup=cgroup)
    try:
        left = survivors(mark, within=2.0)
    finally:
        if child := said.get("child"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
    assert left == {}


def test_a_detached_unit_outlives_its_host_until_its_warden_is_told(person, mark, open_dir):
    said = doom(person, mark, open_dir, "detached", "daemon", cgroup=False)
    before = marked(mark)
    assert before
    assert alive(said["warden"])
    os.kill(said["warden"], signal.SIGTERM)
    until(lambda: not marked(mark) and not alive(said["warden"]))
