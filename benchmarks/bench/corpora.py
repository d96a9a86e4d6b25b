"""JSONL corpora: bytes in, bytes out, against parsing and writing the same bytes."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any, Final

import orjson

from bench.generate import Api, corpus

DAMAGE: Final = 0.05
_PIECE: Final = 2_000_000
"""Bytes of whole lines worked through at once, as the command does."""


def corpus_bytes(api: Api, size: int, seconds: float) -> dict[str, Any]:
    """Processor seconds of the pipeline, and of orjson's loads plus dumps, on the same bytes."""
    from stopkit.cli.corpus import Job, apply_edits, judge_lines

    with_account = Job(action="normalize")
    without = Job(action="normalize", account=False)

    def pipeline(job: Job) -> Callable[[bytes], bytes]:
        def run(text: bytes) -> bytes:
            return apply_edits(text, judge_lines(text, job).edits)

        return run

    paths: dict[str, Callable[[bytes], bytes]] = {
        "orjson loads + dumps": _parse_and_write,
        "stopkit": pipeline(without),
        "stopkit, changes counted": pipeline(with_account),
    }
    answer: dict[str, Any] = {}
    for state, damage in (("damaged", DAMAGE), ("clean", 0.0)):
        pieces = _pieces(corpus(api, size, damage))
        samples: dict[str, list[float]] = {name: [] for name in paths}
        end = perf_counter() + seconds / 2
        while len(samples["stopkit"]) < 5 or perf_counter() < end:
            for name, path in paths.items():
                start = thread_time()
                for piece in pieces:
                    path(piece)
                samples[name].append(thread_time() - start)
        answer[state] = {
            "bytes": sum(map(len, pieces)),
            "seconds": {name: statistics.median(times) for name, times in samples.items()},
        }
    return answer


def _parse_and_write(text: bytes) -> bytes:
    lines = [orjson.dumps(orjson.loads(line)) for line in text.split(b"\n") if line]
    lines.append(b"")
    return b"\n".join(lines)


def _pieces(text: bytes) -> list[bytes]:
    pieces: list[bytes] = []
    at = 0
    while at < len(text):
        stop = text.find(b"\n", at + _PIECE) + 1 or len(text)
        pieces.append(text[at:stop])
        at = stop
    return pieces


def jobs(api: Api, size: int) -> dict[str, Any]:
    """Seconds of the whole command on one file, with one process and with two, turn about.

    Raises:
        RuntimeError: the command failed, or its output depends on the number of processes.
    """
    times: dict[int, list[float]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch, "corpus.jsonl")
        source.write_bytes(corpus(api, size, DAMAGE))
        command = [sys.executable, "-m", "stopkit.cli", "normalize", str(source)]
        for turn in range(3):
            for count in (1, 2):
                out = Path(scratch, f"out-{turn}-{count}")
                start = perf_counter()
                done = subprocess.run(
                    [*command, "--out", str(out), "--jobs", str(count)],
                    capture_output=True,
                    text=True,
                    check=False,
                )
                if done.returncode:
                    raise RuntimeError(f"the command failed: {done.stderr[-2000:]}")
                times[count].append(perf_counter() - start)
        outputs = {path.read_bytes() for path in Path(scratch).glob("out-*/corpus.jsonl")}
        if len(outputs) != 1:
            raise RuntimeError("the output depends on --jobs")
        total = source.stat().st_size
    return {
        "bytes": total,
        "seconds": {str(count): statistics.median(taken) for count, taken in times.items()},
    }
