"""`check` and `normalize`: from the options to the exit code."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from stopkit.cli import report
from stopkit.cli.arguments import Options
from stopkit.cli.corpus import Job, Judged, Reject, reason
from stopkit.cli.jsontext import JsonError, loads
from stopkit.cli.outputs import NewFile, Nothing, Output, OverInput, RejectsFile, StandardOutput
from stopkit.cli.progress import Progress
from stopkit.cli.sources import (
    REJECTS,
    Form,
    Opened,
    Source,
    UnreadableError,
    expand,
    is_regular,
    open_source,
)
from stopkit.cli.workers import Task, WorkerLostError, Workers
from stopkit.outcome import Evidence, parse_evidence

FINE: Final = 0
VIOLATIONS: Final = 1
UNREADABLE: Final = 2

_BATCH: Final = 2 << 20
"""Bytes of whole lines that one step works on."""
_KEPT_REJECTS: Final = 20
"""Rejects of one source that are remembered, to be told; the file has all."""


def run(options: Options) -> int:
    """Do what the options say and return the exit code."""
    try:
        sources = expand(options.inputs)
        _refuse_what_cannot_be_meant(options, sources)
        job = _job(options)
    except UnreadableError as error:
        report.say(str(error))
        return UNREADABLE
    command = _Command(options, several=_several(options, sources))
    total = sum(size for source in sources if (size := _size(source)) is not None)
    try:
        with Workers(options.jobs, job) as workers, Progress(total, len(sources)) as progress:
            for step, judged in workers.map(_steps(sources, options), lambda step: step.task):
                command.take(step, judged)
                progress.advance(len(step.text))
    except WorkerLostError as error:
        command.abandon()
        report.say(str(error))
        return UNREADABLE
    except BaseException:
        command.abandon()
        raise
    return command.finish()


@dataclass(slots=True)
class _Work:
    """One source, from the first step to the last."""

    source: Source
    form: Form | None = None
    before: os.stat_result | None = None
    """What its file was when it was opened."""
    done: Judged = field(default_factory=Judged)
    error: str | None = None
    rejected: int = 0
    rejects: list[Reject] = field(default_factory=list)


@dataclass(slots=True)
class _Step:
    """A piece of a source; without a task, its end."""

    work: _Work
    task: Task | None = None
    text: bytes = b""


def _steps(sources: Iterable[Source], options: Options) -> Iterator[_Step]:
    for source in sources:
        work = _Work(source)
        try:
            with contextlib.ExitStack() as stack:
                file = source.open()
                if source.path is not None:
                    stack.enter_context(file)
                opened = open_source(file, options.field)
                work.form = opened.form
                if is_regular(file):
                    work.before = os.fstat(file.fileno())
                if options.in_place:
                    _refuse_in_place(work)
                yield from _pieces(work, opened, options)
        except OSError as error:
            work.error = f"cannot be read: {error.strerror or error}"
        except UnreadableError as error:
            work.error = str(error)
        except Exception as error:
            work.error = reason(error)
        yield _Step(work)


def _pieces(work: _Work, opened: Opened, options: Options) -> Iterator[_Step]:
    form = opened.form
    path = work.source.path if work.before is not None else None
    if form == "jsonl.conversations":
        offset = 0
        for text in opened.batches(_BATCH):
            if path is not None and options.jobs > 1:
                task = Task(form, path, offset, len(text), usual=opened.usual)
            else:
                task = Task(form, text=text, usual=opened.usual)
            yield _Step(work, task, text)
            offset += len(text)
    elif path is not None and form in ("claude_code", "codex"):
        yield _Step(work, Task(form, path=path))
    else:
        text = opened.read()
        yield _Step(work, Task(form, text=text), text)


def _refuse_in_place(work: _Work) -> None:
    if work.form == "claude_code" or work.form == "codex":
        raise UnreadableError(
            "a session file is its program's own log and is not rewritten in place; "
            "--out DIR writes its history as a request body"
        )
    if work.before is None:
        raise UnreadableError("not a file that can be replaced; --in-place needs one")


class _Command:
    """Takes the steps in order, and writes and tells what became of them."""

    def __init__(self, options: Options, *, several: bool) -> None:
        self._options = options
        self._several = several
        self._code = FINE
        self._total = Judged()
        self._output: Output | None = None
        self._rejects: RejectsFile | None = None
        self._shared_rejects = (
            RejectsFile(Path(options.rejects), name_files=True) if options.rejects else None
        )

    def take(self, step: _Step, judged: Judged) -> None:
        work = step.work
        if step.task is None:
            self._end(work)
            return
        if work.error is None:
            work.error = judged.error
        if work.error is not None:
            return
        if judged.rejects:
            above = work.done.lines
            judged.rejects = [Reject(r.line + above, r.reason, r.text) for r in judged.rejects]
            work.rejected += len(judged.rejects)
            work.rejects += judged.rejects[: _KEPT_REJECTS - len(work.rejects)]
        try:
            self._write(step, judged)
        except BrokenPipeError:
            raise
        except OSError as error:
            work.error = f"cannot be written: {error.strerror or error}"
        work.done.add(judged)

    def _write(self, step: _Step, judged: Judged) -> None:
        if self._output is None:
            self._output = self._output_of(step.work)
        self._output.put(step.text, judged)
        if judged.rejects:
            rejects = self._rejects_of(step.work)
            if rejects is not None:
                rejects.put(step.work.source.name, judged.rejects)
        if judged.records:
            sys.stdout.buffer.write(judged.records)

    def _output_of(self, work: _Work) -> Output:
        options = self._options
        if options.in_place:
            assert work.source.path is not None
            assert work.before is not None
            return OverInput(work.source.path, work.before)
        if options.out is not None:
            return NewFile(Path(options.out) / work.source.mirror)
        if options.action == "check" or options.json:
            return Nothing()
        return StandardOutput()

    def _rejects_of(self, work: _Work) -> RejectsFile | None:
        if self._shared_rejects is not None:
            return self._shared_rejects
        if self._rejects is None:
            options = self._options
            if options.in_place and work.source.path is not None:
                beside = Path(os.path.realpath(work.source.path))
            elif options.out is not None:
                beside = Path(options.out) / work.source.mirror
            else:
                return None
            self._rejects = RejectsFile(beside.with_name(beside.name + REJECTS))
        return self._rejects

    def _end(self, work: _Work) -> None:
        """The source is through: make its output last, and tell."""
        name = work.source.name
        written: str | None = None
        if work.error is None:
            try:
                if self._output is not None:
                    written = self._output.finish()
                if self._rejects is not None:
                    self._rejects.finish()
            except OSError as error:
                work.error = f"cannot be written: {error.strerror or error}"
        if work.error is not None:
            self.abandon_source()
            report.say(f"{name}: {work.error}")
            self._code = UNREADABLE
            return
        self._tell(work, written)
        self._output = self._rejects = None
        if work.rejected:
            self._code = UNREADABLE
        elif self._options.action == "check" and work.done.damaged:
            self._code = max(self._code, VIOLATIONS)

    def _tell(self, work: _Work, written: str | None) -> None:
        name, done, options = work.source.name, work.done, self._options
        corpus = work.form == "jsonl.conversations"
        assert work.form is not None
        report.say_form(name, work.form, done)
        if work.rejected:
            kept = self._shared_rejects or self._rejects
            report.say_rejects(name, work.rejects, work.rejected, kept and kept.target)
        for note in done.notes:
            report.say(f"{name}: {note}")
        if options.action == "check":
            if not options.json:
                report.show_violations(done, corpus, name if self._several else None)
            report.say(f"{name}: {report.checked_summary(done, corpus)}")
        else:
            if not options.json and not self._several:
                report.show_changes(done, corpus)
            report.say(f"{name}: {report.normalized_summary(done, corpus)}")
        for hint in done.hints:
            report.say(f"{name}: note for the next request: {hint}")
        if written is not None:
            report.say(f"{name}: {written}")
        done.findings, done.hints, done.pending, done.notes = [], [], [], []
        for key, (times, first) in done.tallies.items():
            done.tallies[key] = (times, replace(first, where=f"{name}: {first.where}"))
        self._total.add(done)

    def abandon_source(self) -> None:
        """Nothing of the source under work is left."""
        for output in (self._output, self._rejects):
            if output is not None:
                output.abandon()
        self._output = self._rejects = None

    def abandon(self) -> None:
        """Nothing unfinished is left."""
        self.abandon_source()
        if self._shared_rejects is not None:
            self._shared_rejects.abandon()

    def finish(self) -> int:
        """Tell about all of it, and return the exit code."""
        if self._shared_rejects is not None:
            try:
                self._shared_rejects.finish()
            except OSError as error:
                self._shared_rejects.abandon()
                report.say(f"{self._options.rejects}: cannot be written: {error}")
                return UNREADABLE
        if self._several:
            if self._options.action == "normalize":
                if not self._options.json:
                    report.show_changes(self._total, several=True)
                report.say(report.normalized_summary(self._total, several=True))
            else:
                report.say(report.checked_summary(self._total, several=True))
        return self._code


def _several(options: Options, sources: list[Source]) -> bool:
    return len(sources) > 1 or any(Path(given).is_dir() for given in options.inputs)


def _refuse_what_cannot_be_meant(options: Options, sources: list[Source]) -> None:
    """Raises UnreadableError: the outputs would go nowhere, or over one another."""
    if options.in_place:
        if any(source.path is None for source in sources):
            raise UnreadableError("--in-place needs files; standard input goes to standard output")
        return
    if options.out is None:
        to_stdout = options.action == "normalize" and not options.json
        if to_stdout and _several(options, sources):
            raise UnreadableError(
                "several inputs do not fit on standard output: add --out DIR, --in-place or --json"
            )
        return
    inputs = {os.path.realpath(source.path) for source in sources if source.path is not None}
    taken: dict[str, Source] = {}
    for source in sources:
        target = os.path.realpath(Path(options.out) / source.mirror)
        if target in inputs:
            raise UnreadableError(
                f"--out would write over the input {source.name}; --in-place does"
            )
        if target in taken:
            raise UnreadableError(
                f"{taken[target].name} and {source.name} would both be written to {target}"
            )
        taken[target] = source


def _job(options: Options) -> Job:
    return Job(
        action=options.action,
        api=options.api,
        field=options.field,
        live=options.live,
        evidence=None if options.evidence is None else _evidence(options.evidence),
        records=options.json,
        edits=options.action == "normalize"
        and (options.in_place or options.out is not None or not options.json),
        keep_rejects=options.in_place,
    )


def _evidence(name: str) -> dict[str, Evidence]:
    """Raises UnreadableError: the file does not hold `{call_id: evidence}`."""
    try:
        value, _ = loads(Path(name).read_bytes())
    except OSError as error:
        raise UnreadableError(f"{name}: cannot be read: {error.strerror}") from None
    except JsonError as error:
        raise UnreadableError(f"{name}: {error}") from None
    if not isinstance(value, dict):
        raise UnreadableError(
            f'{name}: not an object such as {{"call_id": {{"status": "stopped"}}}}'
        )
    known: dict[str, Evidence] = {}
    for call_id, given in value.items():
        try:
            known[call_id] = parse_evidence(given)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in (call_id, *first["loc"]))
            raise UnreadableError(f"{name}: {place}: {first['msg']}") from None
    return known


def _size(source: Source) -> int | None:
    if source.path is None:
        return None
    try:
        return source.path.stat().st_size
    except OSError:
        return None
