"""What holds a process tree: the interface of the guards, and what they say."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from stopkit.units.facts import (
    Containment,
    Emptiness,
    Exit,
    Member,
    SignalSent,
    Survivor,
)

GuardLoss: TypeAlias = Literal["warden", "broker"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to start, and how it ends if nobody is left to say so.

    `receipt` is the file that then tells how it ended.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    marker: str
    cgroup: str | None
    detached: bool
    grace: float
    verify: float
    lifetime: float | None
    receipt: str | None


@dataclass(frozen=True, slots=True)
class Started:
    """`at` is the monotonic clock's reading.  `guard` is the warden's pid and start time."""

    pid: int
    start: int
    containment: Containment
    at: float
    guard: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """What the end of a tree came to, as its guard saw it.

    `why` is what began it: `asked`, `lifetime`, `terminated` (the warden got SIGTERM), ...
    """

    verified_empty: Emptiness
    leader_signalled: bool = False
    signals: tuple[SignalSent, ...] = ()
    members_seen: int = 0
    members: tuple[Member, ...] = ()
    survivors: tuple[Survivor, ...] = ()
    marked: int = 0
    guards_lost: tuple[GuardLoss, ...] = ()
    why: str = ""


class Guard(Protocol):
    """One tree.  Belongs to the event loop it was made in."""

    leader: asyncio.Future[Exit | None]
    """Set when the leader has ended; None where the loss of the guard hides how."""
    ended: asyncio.Future[Ended]
    """Set when the tree was ended and looked at, or nobody can say any more."""

    async def start(self, order: Order, stdio: tuple[int, int, int]) -> Started:
        """Start the tool.  The descriptors stay the caller's.

        Raises:
            UnitNotStarted: nothing ran.
            UnitStartUnknown: the guard was lost; whatever it had started was ended.
            UnitUnsupported: this guard does not work here.
        """
        ...

    def stop(self, *, grace: float, verify: float) -> None:
        """End the tree.  A repeat shortens, and moves no time further away."""
        ...

    def force(self) -> None:
        """The guard does not answer: end it, and the tree without it."""
        ...

    def signal(self, number: int) -> None:
        """Signal the leader alone."""
        ...

    def close(self) -> None:
        """Let go of the guard's own descriptors.  It may live on, where it is detached."""
        ...
