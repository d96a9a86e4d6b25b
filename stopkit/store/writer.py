"""One thread that writes: group commit, patience with a locked file, notices of other processes.

Every change goes through `submit` as one function over an open transaction.  What has come in by
the time the last commit ended shares the next one.  A future's result is set after its commit, so
that nobody tells what is not recorded.
"""

from __future__ import annotations

import contextlib
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, Generic, Protocol, TypeVar

from stopkit.errors import NotRecorded, StoreClosed
from stopkit.store.tx import Tx

T = TypeVar("T")

NOTICE_INTERVAL: Final = 0.05
"""Seconds between two looks for other processes' writes; a look costs some microseconds."""

_LOCK_WAIT: Final = 0.05
_MAX_BATCH: Final = 512


class Driver(Protocol):
    """What a transaction needs from a database; faults for tests are put around it."""

    def begin(self) -> Tx: ...
    def read(self) -> Tx: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def changed_by_others(self) -> bool: ...
    def close(self) -> None: ...


class _Job(Generic[T]):
    __slots__ = ("apply", "expires", "future")

    def __init__(self, apply: Callable[[Tx], T], expires: float) -> None:
        self.apply = apply
        self.expires = expires
        self.future: Future[T] = Future()


class Writer:
    """Owns the only writing connection of this process.

    `on_notice` is called in the writer's thread after another process has written.
    """

    def __init__(self, connect: Callable[[], Driver], on_notice: Callable[[Tx], None]) -> None:
        self._connect = connect
        self._on_notice = on_notice
        self._queue: queue.SimpleQueue[_Job[object] | None] = queue.SimpleQueue()
        self._closed = False
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._work, name="stopkit-writer", daemon=True)
        self._thread.start()
        try:
            self._ready.result()
        except sqlite3.Error as error:
            raise NotRecorded(f"the store cannot be opened: {error}") from error

    def submit(self, apply: Callable[[Tx], T], *, patience: float) -> Future[T]:
        """Run `apply` in the next transaction; it may be run more than once, on fresh data.

        The future fails with `NotRecorded` where that could not be committed within `patience`
        seconds, and with whatever `apply` raised.  A future that is cancelled before
        its transaction began has changed nothing.
        """
        job = _Job(apply, time.monotonic() + patience)
        if self._closed:
            job.future.set_exception(StoreClosed("the store was closed"))
            return job.future
        self._queue.put(job)  # type: ignore[arg-type]
        return job.future

    def close(self) -> None:
        """Write what was submitted, then end.  A locked file is waited for no longer than asked."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            self._thread.join()

    def _work(self) -> None:
        try:
            driver = self._connect()
        except BaseException as error:
            self._ready.set_exception(error)
            return
        self._ready.set_result(None)
        next_look = time.monotonic() + NOTICE_INTERVAL
        waiting: list[_Job[object]] = []
        open_ = True
        try:
            while open_ or waiting:
                if not waiting:
                    open_ = self._collect(waiting, max(0.0, next_look - time.monotonic()))
                else:
                    open_ = self._collect(waiting, 0.0) and open_
                if waiting:
                    waiting = self._transact(driver, waiting)
                if time.monotonic() >= next_look:
                    self._look(driver)
                    next_look = time.monotonic() + NOTICE_INTERVAL
        finally:
            driver.close()

    def _collect(self, waiting: list[_Job[object]], timeout: float) -> bool:
        """Take in what has come, waiting for the first; False once the queue was closed."""
        try:
            job = self._queue.get(timeout=timeout) if timeout else self._queue.get_nowait()
            while job is not None:
                waiting.append(job)
                if len(waiting) >= _MAX_BATCH:
                    return True
                job = self._queue.get_nowait()
        except queue.Empty:
            return True
        return False

    def _transact(self, driver: Driver, jobs: list[_Job[object]]) -> list[_Job[object]]:
        """Commit what can be committed; returns the jobs that go on waiting for the lock.

        A job that refuses takes its transaction with it, and the others run again: refusals are
        rare, and a savepoint for each job would cost all of them.
        """
        started = False
        while True:
            try:
                tx = driver.begin()
            except Exception as error:
                if not started:
                    return self._begin_failed(jobs, error)
                _fail(jobs, error)
                return []
            if not started:
                started = True
                jobs = [job for job in jobs if job.future.set_running_or_notify_cancel()]
            results: list[object] = []
            try:
                for job in jobs:
                    results.append(job.apply(tx))  # noqa: PERF401
                driver.commit()
            except sqlite3.Error as error:
                driver.rollback()
                _fail(jobs, error)
                return []
            except Exception as error:
                driver.rollback()
                jobs.pop(len(results)).future.set_exception(error)
                continue
            for job, result in zip(jobs, results, strict=True):
                job.future.set_result(result)
            return []

    @staticmethod
    def _begin_failed(jobs: list[_Job[object]], error: Exception) -> list[_Job[object]]:
        now = time.monotonic()
        later: list[_Job[object]] = []
        for job in jobs:
            if job.future.cancelled():
                continue
            if now < job.expires and _is_lock(error):
                later.append(job)
            elif job.future.set_running_or_notify_cancel():
                job.future.set_exception(_not_recorded(error))
        return later

    def _look(self, driver: Driver) -> None:
        # A look needs no lock.  One that fails is made up for by the next, and a file that is gone
        # is told by the next write.
        with contextlib.suppress(sqlite3.Error):
            if driver.changed_by_others():
                self._on_notice(driver.read())


def _fail(jobs: list[_Job[object]], error: Exception) -> None:
    for job in jobs:
        job.future.set_exception(_not_recorded(error))


def _is_lock(error: Exception) -> bool:
    return isinstance(error, sqlite3.OperationalError) and "locked" in str(error)


def _not_recorded(error: Exception) -> NotRecorded:
    told = NotRecorded(f"not recorded: {error}")
    told.__cause__ = error
    return told
