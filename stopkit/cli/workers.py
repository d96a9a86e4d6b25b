"""The same work in one process or in several; results come in the order of the work."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from stopkit.cli.corpus import judge_lines, judge_session, judge_whole, reason
from stopkit.cli.interrupts import SIGNALS, held
from stopkit.cli.judged import Job, Judged
from stopkit.cli.sources import Form
from stopkit.history import Api
from stopkit.normalizer.transcripts import Transcript, load, read_claude_code, read_codex

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

StepT = TypeVar("StepT")


_LOST: Final = "a worker process was ended from outside; the rest was not done"


class WorkerLostError(RuntimeError):
    """A worker process could not start or was ended from outside, and its work is lost."""


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
    """Does tasks, `jobs` at a time.  A context manager: on leaving, no process of it is left.

    There are never more than two processes for each usable processor.  One is started when a task
    comes and all others are at work.
    """

    def __init__(self, jobs: int, job: Job) -> None:
        self._job = job
        # With one there is nothing to share: the work is done here, and starts the sooner.
        self._most = 0 if jobs == 1 else min(jobs, 2 * usable_processors())
        self._idle: list[_Worker] = []
        self._busy: dict[Connection[Any, Any], tuple[_Worker, _Ahead[Any]]] = {}

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # They only read, so there is nothing to finish.
        workers = [*self._idle, *(worker for worker, _ in self._busy.values())]
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            worker.process.join()
            worker.process.close()
            worker.pipe.close()

    def map(
        self, steps: Iterable[StepT], task_of: Callable[[StepT], Task | None]
    ) -> Iterator[tuple[StepT, Judged]]:
        """Each step with what became of its task, in order; a step without a task passes through.

        A few steps are taken ahead of what was consumed, never all: memory stays flat.

        Raises:
            WorkerLostError: a worker process is gone.
        """
        if not self._most:
            for step in steps:
                task = task_of(step)
                yield step, Judged() if task is None else perform(task, self._job)
            return
        ahead: deque[_Ahead[StepT]] = deque()
        for step in steps:
            task = task_of(step)
            ahead.append(_Ahead(step, Judged() if task is None else None))
            if task is not None:
                self._give(task, ahead[-1])
            while ahead and (len(ahead) > 2 * self._most or ahead[0].judged is not None):
                yield self._finished(ahead.popleft())
        while ahead:
            yield self._finished(ahead.popleft())

    def _give(self, task: Task, ahead: _Ahead[Any]) -> None:
        if not self._idle and len(self._busy) < self._most:
            # It and its place among the others belong together, and a child must not raise.
            with held():
                self._idle.append(_start(self._job))
        while not self._idle:
            self._collect()
        # An idle worker reads, so the longest task is through at once.
        worker = self._idle.pop()
        self._busy[worker.pipe] = worker, ahead
        try:
            worker.pipe.send(task)
        except OSError:
            raise WorkerLostError(_LOST) from None

    def _finished(self, ahead: _Ahead[StepT]) -> tuple[StepT, Judged]:
        while ahead.judged is None:
            self._collect()
        return ahead.step, ahead.judged

    def _collect(self) -> None:
        """Wait for workers to be through, and take what they have."""
        from multiprocessing.connection import wait

        ready = wait(list(self._busy))
        for pipe in [pipe for pipe in self._busy if pipe in ready]:
            try:
                judged = pipe.recv()
            except (EOFError, OSError):
                raise WorkerLostError(_LOST) from None
            if isinstance(judged, Exception):
                raise judged
            worker, ahead = self._busy[pipe]
            ahead.judged = judged
            self._idle.append(worker)
            del self._busy[pipe]


@dataclass(slots=True)
class _Ahead(Generic[StepT]):
    """A step that was taken ahead, with what became of its task once that is known."""

    step: StepT
    judged: Judged | None


@dataclass(frozen=True, slots=True)
class _Worker:
    process: BaseProcess
    pipe: Connection[Any, Any]


def usable_processors() -> int:
    """How many processors this process may run on, where the system tells; else all."""
    if sys.platform == "linux":
        number = len(os.sched_getaffinity(0))
    else:
        number = os.cpu_count() or 1
    return number


def _start(job: Job) -> _Worker:
    import multiprocessing

    # A fork starts at once and has everything loaded; elsewhere it is not safe.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
    # A forked child would write out once more what is buffered.
    sys.stdout.flush()
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, job), daemon=True)
    try:
        process.start()
    except OSError as error:
        ours.close()
        theirs.close()
        raise WorkerLostError(f"no worker process can be started: {error.strerror}") from None
    # Its only holder is the worker now: the pipe ends when the worker does.
    theirs.close()
    return _Worker(process, ours)


def _work(pipe: Connection[Any, Any], job: Job) -> None:
    """The life of a worker process: until it is killed."""
    # A terminal or a supervisor signals the whole group; what it means is for the parent to say.
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        while True:
            task = pipe.recv()
            try:
                done: Judged | Exception = perform(task, job)
            except Exception as error:
                done = error
            pipe.send(done)


def _end_with_the_parent() -> None:
    """A parent that is killed kills nobody, and its end of a forked pipe lives on in siblings.

    The sentinel of the parent does so too, but in younger siblings only: the youngest worker sees
    the end first, and when it leaves the next one does.
    """
    from multiprocessing import parent_process
    from multiprocessing.connection import wait

    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
