"""Pipes of our own: bounded in memory, spilled to a file, streamed, and left when nobody ends them.

asyncio's pipe transports are not used: with them, waiting for a process waits for whoever holds
its pipes too.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from stopkit.units.errors import UnitInputClosed, UnitState
from stopkit.units.facts import OutputFacts

_READ: Final = 1 << 18
_SMALL: Final = 1 << 12


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputLimits:
    """How much of each stream is kept, in bytes.

    `memory`: the newest bytes, in memory.  `spill`: a directory for a file with the oldest bytes,
    up to `spill_limit`; it stays after the unit.  What is in neither is dropped, and counted.
    `hold`: while a stream is read, make the tool wait for its reader rather than drop anything.
    """

    memory: int = 1 << 18
    spill: str | os.PathLike[str] | None = None
    spill_limit: int = 1 << 30
    hold: bool = False

    def __post_init__(self) -> None:
        if self.memory < 0 or self.spill_limit < 0:
            raise ValueError("a limit is a number of bytes, not below 0")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes as they came.  Where `offset` is beyond the last chunk's end, some were dropped."""

    offset: int
    data: bytes


class OutputPipe:
    """The reading end of one stream.  Belongs to the event loop it was made in."""

    def __init__(
        self,
        name: Literal["stdout", "stderr"],
        fd: int,
        inode: int,
        limits: OutputLimits,
        unit: str,
    ) -> None:
        self.name: Literal["stdout", "stderr"] = name
        self.inode = inode
        self._fd = fd
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        """Done once the stream's end was read, or reading was given up."""
        self._complete = False
        self._total = 0
        self._parts: deque[bytearray] = deque()
        self._kept = 0
        self._spilled = 0
        self._spill_fd = -1
        self._spill_path: str | None = None
        self._spill_error: str | None = None
        self._queue: deque[Chunk] | None = None
        self._queued = 0
        self._reader: asyncio.Future[None] | None = None
        self._held = False
        self._draining = False
        if limits.spill is not None:
            self._open_spill(Path(limits.spill) / f"{unit}.{name}")
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._readable)

    @property
    def complete(self) -> bool:
        return self._complete

    @property
    def kept(self) -> bytes:
        """The newest bytes, at most as many as the limit says."""
        return b"".join(self._parts)

    def stream(self) -> AsyncIterator[Chunk]:
        """The chunks from now on, for one reader; without `hold`, a slow one misses some.

        Raises:
            UnitState: if somebody reads this stream already.
        """
        if self._queue is not None:
            raise UnitState(f"{self.name} has a reader already")
        self._queue = deque()
        if self._kept:
            # What came before the reader did, as far as it is still there.
            self._push(Chunk(self._total - self._kept, self.kept))
        return self._chunks()

    def drain(self) -> None:
        """From now on wait for no reader: the unit is ending."""
        self._draining = True
        self._resume()

    def close(self) -> None:
        """Give up reading, and release the descriptor.  Twice is once."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
        if self._spill_fd >= 0:
            os.close(self._spill_fd)
            self._spill_fd = -1
        if not self.ended.done():
            self.ended.set_result(None)
        self._wake_reader()

    def facts(self) -> OutputFacts:
        return OutputFacts(
            self.name,
            self._total,
            self._kept,
            self._spilled,
            max(0, self._total - self._kept - self._spilled),
            self._complete,
            self._spill_path,
            self._spill_error,
        )

    def _readable(self) -> None:
        try:
            data = os.read(self._fd, _READ)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        if not data:
            self._complete = True
            self.close()
            return
        self._keep(data)
        if self._queue is not None:
            self._push(Chunk(self._total - len(data), data))

    def _keep(self, data: bytes) -> None:
        self._total += len(data)
        if self._spill_fd >= 0:
            self._spill(data)
        limit = self._limits.memory
        if limit == 0:
            return
        data = data[-limit:]
        # Many small writes would cost more in bookkeeping than in bytes.
        if self._parts and len(data) < _SMALL and len(self._parts[-1]) < _READ:
            self._parts[-1] += data
        else:
            self._parts.append(bytearray(data))
        self._kept += len(data)
        while self._kept > limit:
            first = self._parts[0]
            excess = self._kept - limit
            if len(first) <= excess:
                self._parts.popleft()
                self._kept -= len(first)
            else:
                del first[:excess]
                self._kept -= excess

    def _open_spill(self, path: Path) -> None:
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._spill_fd = os.open(path, flags, 0o600)
        except OSError as error:
            self._spill_error = f"{error.strerror}: {path}"
        else:
            self._spill_path = str(path)

    def _spill(self, data: bytes) -> None:
        room = self._limits.spill_limit - self._spilled
        view = memoryview(data)[: max(0, room)]
        try:
            while view:
                written = os.write(self._spill_fd, view)
                self._spilled += written
                view = view[written:]
        except OSError as error:
            # A full disk costs the file, never the tool.
            self._spill_error = error.strerror
            room = 0
        if room <= len(data):
            os.close(self._spill_fd)
            self._spill_fd = -1

    def _push(self, chunk: Chunk) -> None:
        queue = self._queue
        assert queue is not None
        queue.append(chunk)
        self._queued += len(chunk.data)
        limit = max(self._limits.memory, _READ)
        if self._queued > limit:
            if self._limits.hold and not self._draining:
                self._hold()
            else:
                while len(queue) > 1 and self._queued > limit:
                    self._queued -= len(queue.popleft().data)
        self._wake_reader()

    def _hold(self) -> None:
        if not self._held and self._fd >= 0:
            self._held = True
            self._loop.remove_reader(self._fd)

    def _resume(self) -> None:
        if self._held and self._fd >= 0:
            self._held = False
            self._loop.add_reader(self._fd, self._readable)

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def _chunks(self) -> AsyncIterator[Chunk]:
        queue = self._queue
        assert queue is not None
        while True:
            while queue:
                chunk = queue.popleft()
                self._queued -= len(chunk.data)
                if self._queued <= max(self._limits.memory, _READ) // 2:
                    self._resume()
                yield chunk
            if self.ended.done():
                return
            self._reader = self._loop.create_future()
            await self._reader


class InputPipe:
    """The writing end of a tool's input.  Belongs to the event loop it was made in."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._lock = asyncio.Lock()
        self._writable: asyncio.Future[None] | None = None

    @property
    def closed(self) -> bool:
        return self._fd < 0

    async def write(self, data: bytes) -> None:
        """Write all of it, waiting for the tool to read.

        Raises:
            UnitInputClosed: if nobody reads it any more, or it was closed.

        Cancellation: a part may have been written.
        """
        async with self._lock:
            view = memoryview(data)
            while view:
                if self._fd < 0:
                    raise UnitInputClosed("the unit's input is closed")
                try:
                    view = view[os.write(self._fd, view) :]
                except BlockingIOError:
                    await self._until_writable()
                except BrokenPipeError as error:
                    self.close()
                    raise UnitInputClosed("the process does not read its input") from error

    def close(self) -> None:
        """Let the tool read the end of its input.  Twice is once."""
        if self._fd >= 0:
            self._loop.remove_writer(self._fd)
            os.close(self._fd)
            self._fd = -1
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    async def _until_writable(self) -> None:
        self._writable = self._loop.create_future()
        self._loop.add_writer(self._fd, self._now_writable)
        try:
            await self._writable
        finally:
            if self._fd >= 0:
                self._loop.remove_writer(self._fd)

    def _now_writable(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
