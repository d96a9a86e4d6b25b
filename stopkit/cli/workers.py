"""The same work in one process or in several; results come in the order of the work."""

from __future__ import annotations

import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from stopkit.cli.corpus import Job, Judged, judge_lines, judge_session, judge_whole, reason
from stopkit.cli.sources import Form
from stopkit.history import Api
from stopkit.normalizer.transcripts import Transcript, load, read_claude_code, read_codex

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor

StepT = TypeVar("StepT")


class WorkerLostError(RuntimeError):
    """A worker process was ended from outside, and its work is lost."""


@dataclass(frozen=True, slots=True)
class Task:
    """A text to work through: `text` itself, or `length` bytes at `offset` of the file at `path`.

    A file goes to another process by its place, not by its bytes.  Session files are always read
    whole, with what stands beside them.
    """

    form: Form
    path: Path | None = None
    offset: int = 0
    length: int = 0
    text: bytes | None = None
    usual: Api | None = None
    """The API of conversations that do not tell their own."""


def perform(task: Task, job: Job) -> Judged:
    """Do one task, in whichever process."""
    try:
        if task.form == "claude_code" or task.form == "codex":
            return judge_session(_read_session(task), job)
        text = task.text if task.text is not None else _read(task)
    except Exception as error:
        return Judged(error=reason(error))
    if task.form == "jsonl.conversations":
        return judge_lines(text, job, task.usual)
    return judge_whole(text, task.form, job)


def _read(task: Task) -> bytes:
    assert task.path is not None
    with task.path.open("rb") as file:
        file.seek(task.offset)
        return file.read(task.length)


def _read_session(task: Task) -> Transcript:
    if task.path is not None:
        return load(task.path)
    read = read_claude_code if task.form == "claude_code" else read_codex
    return read(task.text or b"")


class Workers:
    """Does tasks, `jobs` at a time.  A context manager: on leaving, no process of it is left."""

    def __init__(self, jobs: int, job: Job) -> None:
        self._jobs = jobs
        self._job = job
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Workers:
        if self._jobs > 1:
            # One process needs nothing of this, and starts the sooner.
            import multiprocessing
            from concurrent.futures import ProcessPoolExecutor

            # A fork starts at once and has everything loaded; elsewhere it is not safe.
            method = "fork" if sys.platform == "linux" else None
            self._pool = ProcessPoolExecutor(
                self._jobs,
                mp_context=multiprocessing.get_context(method),
                initializer=_leave_interrupts_to_the_parent,
            )
            # Forked now: a child would write out once more what is buffered later.
            sys.stdout.flush()
            self._pool.submit(int).result()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def map(
        self, steps: Iterable[StepT], task_of: Callable[[StepT], Task | None]
    ) -> Iterator[tuple[StepT, Judged]]:
        """Each step with what became of its task, in order; a step without a task passes through.

        A few steps are taken ahead of what was consumed, never all: memory stays flat.
        """
        if self._pool is None:
            for step in steps:
                task = task_of(step)
                yield step, Judged() if task is None else perform(task, self._job)
            return
        ahead: deque[tuple[StepT, Future[Judged] | None]] = deque()
        for step in steps:
            task = task_of(step)
            future = None if task is None else self._pool.submit(perform, task, self._job)
            ahead.append((step, future))
            while len(ahead) > 2 * self._jobs or (ahead and _is_done(ahead[0][1])):
                yield _wait(*ahead.popleft())
        while ahead:
            yield _wait(*ahead.popleft())


def _is_done(future: Future[Judged] | None) -> bool:
    return future is None or future.done()


def _wait(step: StepT, future: Future[Judged] | None) -> tuple[StepT, Judged]:
    from concurrent.futures.process import BrokenProcessPool

    try:
        return step, Judged() if future is None else future.result()
    except BrokenProcessPool:
        raise WorkerLostError(
            "a worker process was ended from outside; the rest was not done"
        ) from None


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
