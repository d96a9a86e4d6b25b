"""One measurement, made in a process of its own; the answer is plain data for the report.

Samples are processor time of the one thread, so that being put aside for another process is not in
them; only `extend`, of a few microseconds, is by the wall, whose clock costs less.  The collector
runs as it always does: no threshold is changed, nothing is frozen out of it (except in `growth`).

Contestants take turns, a sample each a round, every round begun by another one, so that whatever
else the machine does falls on all of them.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from time import perf_counter, perf_counter_ns, thread_time, thread_time_ns
from typing import Any, Final

from bench.contestants import (
    CHECK_LOOP,
    PAIR_LOOP,
    STOPKIT,
    Contestant,
    ours,
    peers,
)
from bench.corpora import corpus_bytes, jobs
from bench.generate import KINDS, PER_TURN, Api, Item, history, turn
from bench.loops import CHECK
from bench.shapes import shapes

SAMPLE_SECONDS: Final = 0.004
"""A sample repeats a call until it has taken about this long."""
ROUNDS: Final = (5, 41)
"""At least and at most this many rounds."""
SHAPE_LIMIT: Final = 4.0
"""Seconds: a size of a shape that may take longer is not run."""
SHAPE_SECONDS: Final = 0.5
"""Rounds over a shape's sizes go on for about this long."""


@dataclass(slots=True)
class Lane:
    """One contestant of an interleaved run."""

    contestant: Contestant
    wires: list[list[Item]]
    native: list[Any] = field(default_factory=list)
    calls: int = 1
    samples: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.native = self._load()

    def _load(self) -> list[Any]:
        return [self.contestant.load(wire) for wire in self.wires]

    def sample(self) -> float:
        """Seconds that one call on each history takes, its garbage included."""
        mutates = self.contestant.mutates
        batches = [self._load() if mutates else self.native for _ in range(self.calls)]
        run = self.contestant.run
        start = thread_time_ns()
        for batch in batches:
            for native in batch:
                run(native)
        return (thread_time_ns() - start) / self.calls / 1e9


def interleave(lanes: Sequence[Lane], seconds: float) -> None:
    """Fill the lanes' samples, for about `seconds` in all."""
    for lane in lanes:
        lane.calls = max(1, round(SAMPLE_SECONDS / max(lane.sample(), 1e-7)))
        if lane.calls > 1:
            lane.sample()  # warm: a short first one met an unspecialised interpreter
    end = perf_counter() + seconds
    least, most = ROUNDS
    for number in range(most):
        if number >= least and perf_counter() > end:
            break
        first = number % len(lanes)
        for lane in (*lanes[first:], *lanes[:first]):
            # One that takes long has said enough after a few rounds.
            if number < 3 or lane.samples[-1] < 0.5:
                lane.samples.append(lane.sample())


def repair(api: Api, size: int, seconds: float) -> dict[str, Any]:
    """µs a message of every contestant on a damaged and a clean history of about `size`, and
    whether stopkit did what it is timed for.

    Raises:
        RuntimeError: a repaired history is not valid; its time would mean nothing.
    """
    from stopkit.normalizer import check, normalize

    contestants = [*ours(api), *peers(api)]
    answer: dict[str, Any] = {
        "versions": {c.package: c.version for c in contestants},
        "timed": {c.name: c.what for c in contestants},
    }
    for state, damage in (("damaged", 0.05), ("clean", 0.0)):
        # Several short histories: one alone would be damaged in one way.
        seeds = range(max(1, 2_000 // size))
        wires = [history(api, size, damage, seed=seed) for seed in seeds]
        messages = sum(map(len, wires))
        same = True
        for wire in wires:
            mended = normalize(wire, api=api).history
            same = same and mended is wire
            for violation in check(list(mended), api=api).violations:
                if violation.scope == "prefix":
                    raise RuntimeError(f"{api}, {size}, {state}: {violation}")
            del mended
        # On a damaged history the check loop stops at the first fault.
        entered = [c for c in contestants if damage == 0 or c.name != CHECK_LOOP]
        lanes = [Lane(contestant, wires) for contestant in entered]
        gc.collect()
        interleave(lanes, seconds)
        answer[state] = {
            "messages": messages / len(wires),
            "rounds": max(len(lane.samples) for lane in lanes),
            "same_object": same,
            "us": {
                lane.contestant.name: statistics.median(lane.samples) / messages * 1e6
                for lane in lanes
            },
        }
        del lanes
    return answer


def truth(api: Api, size: int) -> dict[str, Any]:
    """Which kinds of damage leave each contestant as a history whose calls and results pair, and
    how many recorded results are no longer in it: `[name][kind]`, in words."""
    contestants = [c for c in ours(api) if c.name in (STOPKIT, PAIR_LOOP)] + peers(api)
    kinds: dict[str, dict[str, str]] = {c.name: {} for c in contestants}
    for kind in KINDS:
        wire = history(api, size, 0.3, kinds=(kind,))
        recorded = _results(wire)
        for contestant in contestants:
            repaired = contestant.dump(contestant.run(contestant.load(wire)))
            text = repr(repaired)
            lost = sum(result not in text for result in recorded)
            word = "yes" if CHECK[api](repaired) else "no"
            kinds[contestant.name][kind] = f"{word}, {lost} lost" if lost else word
    return kinds


def _results(items: list[Item]) -> list[str]:
    """The text of every recorded result; the generator begins each with its call's id."""
    found: list[str] = []
    for item in items:
        if item.get("type") == "function_call_output":
            found.append(item["output"])
        elif item.get("role") == "tool":
            found.append(item["content"])
        elif isinstance(item.get("content"), list):
            found += [
                block["content"][0]["text"]
                for block in item["content"]
                if block.get("type") == "tool_result"
            ]
    return found


def extend(api: Api, size: int, seconds: float) -> dict[str, Any]:
    """Medians in µs on a history of about `size`: of `Normalizer.extend` with 4 messages, several
    times in a row; of the same right behind a `request()`; and of such a `request()`.

    The 4 are what a living agent adds from one question to the next (call, result, answer, next
    question), so that each request is sendable and freezes what it handed out.
    """
    from stopkit.normalizer import Normalizer

    first = size // PER_TURN[api] + 1
    # Few turns a round, so that a history of 100 stays near 100; it ends below `size`, which may
    # be an API's limit.
    turns = [turn(api, first + n, calls=1) for n in range(9)]
    steps = [[*this[1:], next_[0]] for this, next_ in pairwise(turns)]
    start = [*history(api, size - 1 - sum(map(len, steps)), 0), turns[0][0]]
    times: dict[str, list[float]] = {"extend": [], "extend behind a request": [], "request": []}

    def timed(name: str, call: Callable[[], object], *, count: bool) -> None:
        before = perf_counter_ns()
        call()
        after = perf_counter_ns()
        if count:
            times[name].append((after - before) / 1e3)

    end = perf_counter() + seconds
    rounds = 0
    while rounds < ROUNDS[0] or (perf_counter() < end and rounds < 200):
        rounds += 1
        normalizer = Normalizer(api)
        normalizer.extend(start)
        normalizer.request()
        for number, items in enumerate(steps):
            # The first of a row is still behind a request.
            timed("extend", partial(normalizer.extend, items), count=number > 0)
        normalizer = Normalizer(api)
        normalizer.extend(start)
        normalizer.request()
        for items in steps:
            timed("extend behind a request", partial(normalizer.extend, items), count=True)
            timed("request", normalizer.request, count=True)
    return {name: statistics.median(taken) for name, taken in times.items()}


def growth(api: Api, sizes: Sequence[int]) -> dict[str, Any]:
    """Milliseconds of every contestant on every shape, `[shape][name][k]`; a word where there are
    none: `not run`, or the name of the error."""
    contestants = [c for c in ours(api) if c.name == STOPKIT] + peers(api)
    by_size = {k: shapes(api, k) for k in sizes}
    # A full pass over all that was imported, now and then, would hide the curve.
    gc.freeze()
    return {
        shape: {
            contestant.name: _over_sizes(contestant, {k: by_size[k][shape] for k in sizes})
            for contestant in contestants
        }
        for shape in by_size[sizes[0]]
    }


def _over_sizes(contestant: Contestant, wires: dict[int, list[Item]]) -> dict[str, float | str]:
    """Medians in milliseconds; after a first look the sizes take turns."""
    sizes = sorted(wires)
    samples: dict[int, list[float]] = {}
    word = "not run"
    start = perf_counter()
    try:
        _once(contestant, wires[sizes[0]])  # warm
        for k in sizes:
            if _expected([first for (first,) in samples.values()]) > SHAPE_LIMIT:
                break
            samples[k] = [_once(contestant, wires[k])]
    except Exception as error:
        if contestant.name == STOPKIT:
            raise
        # A peer's own failure is part of the answer.
        word = type(error).__name__
    for _ in range(14):
        if perf_counter() - start > SHAPE_SECONDS:
            break
        for k, taken in samples.items():
            taken.append(_once(contestant, wires[k]))
    return {str(k): statistics.median(samples[k]) * 1e3 if k in samples else word for k in sizes}


def _once(contestant: Contestant, wire: list[Item]) -> float:
    native = contestant.load(wire)
    start = thread_time()
    contestant.run(native)
    return thread_time() - start


def _expected(times: list[float]) -> float:
    """Seconds that the next size, 4 times the last, may take: quadratic until two are known."""
    if not times:
        return 0.0
    grown = times[-1] / times[-2] if len(times) > 1 else 16.0
    return times[-1] * min(max(grown, 4.0), 16.0)


CELLS: Final[dict[str, Callable[..., dict[str, Any]]]] = {
    "repair": repair,
    "truth": truth,
    "extend": extend,
    "growth": growth,
    "corpus": corpus_bytes,
    "jobs": jobs,
}
