"""What the unit tests share: a mark, people to run as, and a look around after each test."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import pytest
from units.truth import clean, marked, until

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
NOBODY = 65534


class Person:
    """Somebody that a host process can run as, with an interpreter that they may run."""

    def __init__(self, name, uid, python):
        self.name = name
        self.uid = uid
        self.python = python

    def command(self, script, *arguments):
        return [self.python, "-B", str(HERE / script), *arguments]

    def environment(self, **more):
        import pydantic

        packages = str(Path(pydantic.__file__).parent.parent)
        path = os.pathsep.join([str(ROOT), str(HERE.parent), packages])
        return {"PATH": os.defpath, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **more}

    def popen(self, script, *arguments, env=None, **options):
        if self.uid != os.geteuid():
            options |= {"user": self.uid, "group": self.uid, "extra_groups": []}
        return subprocess.Popen(
            self.command(script, *arguments),
            env=self.environment(**(env or {})),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
            **options,
        )


def _runs_as(python, uid):
    try:
        done = subprocess.run(
            [python, "-c", "import sys; print(sys.version_info[:2] >= (3, 11))"],
            user=uid,
            group=uid,
            extra_groups=[],
            capture_output=True,
            text=True,
            cwd="/",
            check=False,
        )
    except OSError:
        return False
    return done.stdout.strip() == "True"


def _people():
    me = Person("root" if os.geteuid() == 0 else "ordinary", os.geteuid(), sys.executable)
    if os.geteuid() != 0:
        return [me]
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    for python in (sys.executable, f"/usr/bin/python{version}", f"/usr/local/bin/python{version}"):
        if _runs_as(python, NOBODY):
            return [me, Person("ordinary", NOBODY, python)]
    # No interpreter that anybody else may run: the tests are of one user only.
    return [me]


PEOPLE = _people()


@pytest.fixture(params=PEOPLE, ids=lambda person: person.name, scope="session")
def person(request):
    return request.param


@pytest.fixture
def mark():
    """A mark for this test's processes; none of them may be left at its end."""
    value = uuid.uuid4().hex
    yield value
    left = marked(value)
    clean(value)
    assert left == {}


@pytest.fixture
def open_dir():
    """A directory that everybody may write to."""
    path = Path(tempfile.gettempdir()) / f"stopkit-zoo-{uuid.uuid4().hex}"
    path.mkdir()
    path.chmod(0o777)
    yield path
    shutil.rmtree(path, ignore_errors=True)


def _descriptors():
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.add((fd, os.readlink(f"/proc/self/fd/{fd}")))
        except OSError:
            continue
    return found


@pytest.fixture(autouse=True)
def nothing_left_open(request):
    """No test leaves a descriptor open; the broker's socket is the process's own."""
    from stopkit.units.broker import BROKER

    BROKER.close()
    before = _descriptors()
    yield
    BROKER.close()
    gc.collect()
    until(lambda: not (_descriptors() - before), within=5.0)
