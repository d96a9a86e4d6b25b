"""Processes that are hard to stop.  Each bears `STOPKIT_ZOO` in its environment or its argv.

`beasts.py NAME` becomes the beast.  Once its tree stands it makes the file that `STOPKIT_READY`
names.  Each ends by itself after a while, whatever the tests do.
"""

from __future__ import annotations

import os
import signal
import sys
import time

TTL = 60
HOP = 0.8
MARK = "STOPKIT_ZOO"


def ready():
    path = os.environ["STOPKIT_READY"]
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666))


def idle():
    signal.alarm(TTL)
    while True:
        signal.pause()


def quiet():
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)


def detached(then):
    """A daemon: forked twice, in a session of its own."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        if os.fork() == 0:
            quiet()
            then()
            idle()
        os._exit(0)
    os.waitpid(pid, 0)


def shell_bg():
    os.execv("/bin/sh", ["sh", "-c", f'sleep {TTL} & : > "$STOPKIT_READY"; sleep {TTL}'])


def setsid_child():
    if os.fork() == 0:
        os.setsid()
        ready()
        idle()
    idle()


def group_mover():
    if os.fork() == 0:
        os.setpgid(0, 0)
        ready()
        idle()
    idle()


def daemon():
    detached(ready)
    idle()


def daemon_leader_gone():
    detached(ready)
    os._exit(0)


def term_ignorer():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        ready()
    idle()


def pipe_holder():
    if os.fork() == 0:
        ready()
        idle()
    os.write(1, b"done\n")
    os._exit(0)


def _hop(generations, delay, new_session):
    if os.fork() == 0:
        for _ in range(generations):
            time.sleep(delay)
            if new_session:
                os.setsid()
            if os.fork() != 0:
                os._exit(0)
        idle()
    ready()
    idle()


def respawner():
    _hop(30, 0.03, False)


def session_respawner():
    _hop(30, 0.03, True)


def hot_hopper():
    """Forks and leaves as fast as it can, in a new session each time; then it stays."""
    if os.fork() == 0:
        end = time.monotonic() + HOP
        while time.monotonic() < end:
            os.setsid()
            if os.fork() != 0:
                os._exit(0)
        idle()
    ready()
    idle()


def term_forker():
    """On SIGTERM it leaves a successor in a new session, which ignores the next one."""

    def on_term(*_):
        if os.fork() == 0:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            quiet()
            idle()
        os._exit(0)

    signal.signal(signal.SIGTERM, on_term)
    ready()
    idle()


def slow_to_obey():
    """Takes note of SIGTERM, and goes on."""

    def on_term(*_):
        path = os.environ["STOPKIT_READY"] + ".told"
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666))

    signal.signal(signal.SIGTERM, on_term)
    os.fork()
    ready()
    idle()


def zombie_parent():
    for _ in range(3):
        if os.fork() == 0:
            os._exit(0)
    if os.fork() == 0:
        ready()
    idle()


def flood():
    signal.alarm(TTL)
    if os.fork() == 0:
        ready()
    data = b"x" * 65536
    while True:
        os.write(1, data)


def stopped():
    if os.fork() == 0:
        signal.alarm(TTL)
        ready()
        os.kill(os.getpid(), signal.SIGSTOP)
        idle()
    idle()


def env_scrubber():
    """Detached, and without an environment."""
    mark = os.environ[MARK]
    pid = os.fork()
    if pid == 0:
        os.setsid()
        if os.fork() == 0:
            quiet()
            ready()
            os.execve("/bin/sleep", [f"sleep-{mark}", str(TTL)], {})
        os._exit(0)
    os.waitpid(pid, 0)
    idle()


def descriptor_closer():
    """Closes everything it was given, and works on."""
    detached(lambda: None)
    ready()
    os.closerange(0, 4096)
    idle()


def many_children():
    for _ in range(1000):
        if os.fork() == 0:
            idle()
    ready()
    idle()


def fork_tree():
    """Three levels, each member with two children, every second one in a session of its own."""
    for _ in range(3):
        for _ in range(2):
            if os.fork() == 0:
                os.setsid()
                break
        else:
            break
    else:
        ready()
    idle()


def vanishing_leader():
    """The leader is killed from inside while a busy tree goes on."""
    leader = os.getpid()
    if os.fork() == 0:
        os.setsid()
        os.kill(leader, signal.SIGKILL)
        if os.fork() == 0:
            quiet()
            ready()
            idle()
        idle()
    idle()


def warden_killer():
    """Leaves a daemon behind and kills whoever is its parent."""
    detached(lambda: None)
    parent = os.getppid()
    os.kill(parent, signal.SIGKILL)
    ready()
    idle()


def _parent_of(pid):
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[1])


def broker_killer():
    detached(lambda: None)
    os.kill(_parent_of(os.getppid()), signal.SIGKILL)
    ready()
    idle()


def both_killer():
    detached(lambda: None)
    warden = os.getppid()
    os.kill(_parent_of(warden), signal.SIGKILL)
    os.kill(warden, signal.SIGKILL)
    ready()
    idle()


def warden_stopper():
    """Stops its guard, so that it answers nobody."""
    detached(lambda: None)
    os.kill(os.getppid(), signal.SIGSTOP)
    ready()
    idle()


def dropped_child():
    """A child of another user, where its parent may make one; in a session of its own."""
    if os.fork() == 0:
        os.setsid()
        ready_fd = os.open(os.environ["STOPKIT_READY"], os.O_WRONLY | os.O_CREAT, 0o666)
        if os.geteuid() == 0:
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
        os.close(ready_fd)
        idle()
    idle()


def other_user():
    """Becomes root for good, by the set-uid interpreter that runs it."""
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    ready()
    idle()


PEACEFUL = (
    shell_bg,
    setsid_child,
    group_mover,
    daemon,
    daemon_leader_gone,
    term_ignorer,
    pipe_holder,
    respawner,
    session_respawner,
    hot_hopper,
    term_forker,
    zombie_parent,
    flood,
    stopped,
    env_scrubber,
    descriptor_closer,
    many_children,
    fork_tree,
    vanishing_leader,
    slow_to_obey,
    dropped_child,
)
ATTACKERS = (warden_killer, broker_killer, both_killer, warden_stopper)
NAMES = tuple(beast.__name__ for beast in PEACEFUL)
ATTACKER_NAMES = tuple(beast.__name__ for beast in ATTACKERS)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
