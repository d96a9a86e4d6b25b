"""One measurement, made in a process of its own; the answer is plain data for the report.

The collector runs as it always does: nothing is frozen out of it and no threshold is changed.
Contestants take turns, a sample each a round, every round begun by another one, so that whatever
else the machine does falls on all of them.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter, perf_counter_ns
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
    wire: list[Item]
    native: Any = None
    calls: int = 1
    samples: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.native = self.contestant.load(self.wire)

    def sample(self) -> float:
        """Seconds a call takes, its garbage included."""
        contestant = self.contestant
        batch = (
            [contestant.load(self.wire) for _ in range(self.calls)]
            if contestant.mutates
            else [self.native] * self.calls
        )
        run = contestant.run
        start = perf_counter_ns()
        for native in batch:
            run(native)
        return (perf_counter_ns() - start) / self.calls / 1e9


def interleave(lanes: Sequence[Lane], seconds: float) -> None:
    """Fill the lanes' samples, for about `seconds` in all."""
    for lane in lanes:
        lane.calls = max(1, round(SAMPLE_SECONDS / max(lane.sample(), 1e-7)))
    for lane in lanes:
        lane.sample()  # warm: the first one also met an unspecialised interpreter
    end = perf_counter() + seconds
    least, most = ROUNDS
    for number in range(most):
        if number >= least and perf_counter() > end:
            break
        first = number % len(lanes)
        for lane in (*lanes[first:], *lanes[:first]):
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
        wire = history(api, size, damage)
        mended = normalize(wire, api=api).history
        violations = check(list(mended), api=api).violations
        if any(violation.scope == "prefix" for violation in violations):
            raise RuntimeError(f"{api}, {size}, {state}: {violations[0]}")
        # On a damaged history the check loop stops at the first fault.
        entered = [c for c in contestants if damage == 0 or c.name != CHECK_LOOP]
        lanes = [Lane(contestant, wire) for contestant in entered]
        gc.collect()
        interleave(lanes, seconds)
        answer[state] = {
            "messages": len(wire),
            "rounds": len(lanes[0].samples),
            "same_object": mended is wire,
            "us": {
                lane.contestant.name: statistics.median(lane.samples) / len(wire) * 1e6
                for lane in lanes
            },
        }
        del lanes, mended
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
    """µs that `Normalizer.extend` takes for a turn of 4 messages, on a history of about `size`,
    and µs of the `request()` that follows each."""
    from stopkit.normalizer import Normalizer

    start = history(api, size, 0)
    first = size // PER_TURN[api] + 1
    appended: list[float] = []
    handed: list[float] = []
    end = perf_counter() + seconds
    rounds = 0
    while rounds < ROUNDS[0] or (perf_counter() < end and rounds < 200):
        normalizer = Normalizer(api)
        normalizer.extend(start)
        normalizer.request()
        # Few turns a round, so that a history of 100 stays near 100.
        turns = [turn(api, first + n, calls=1) for n in range(8)]
        for number, items in enumerate(turns):
            before = perf_counter_ns()
            normalizer.extend(items)
            between = perf_counter_ns()
            normalizer.request()
            after = perf_counter_ns()
            if number:  # the first is cold
                appended.append((between - before) / 1e3)
                handed.append((after - between) / 1e3)
        rounds += 1
    return {"extend": statistics.median(appended), "request": statistics.median(handed)}


def growth(api: Api, sizes: Sequence[int]) -> dict[str, Any]:
    """Milliseconds of every contestant on every shape, `[shape][name][k]`; a word where there are
    none: `not run`, or the name of the error."""
    contestants = [c for c in ours(api) if c.name == STOPKIT] + peers(api)
    by_size = {k: shapes(api, k) for k in sizes}
    return {
        shape: {
            contestant.name: _over_sizes(contestant, {k: by_size[k][shape] for k in sizes})
            for contestant in contestants
        }
        for shape in by_size[sizes[0]]
    }


def _over_sizes(contestant: Contestant, wires: dict[int, list[Item]]) -> dict[str, float | str]:
    """Medians in milliseconds; the sizes take turns."""
    samples: dict[int, list[float]] = {k: [] for k in wires}
    words: dict[str, float | str] = {}
    start = perf_counter()
    for number in range(15):
        for k, wire in wires.items():
            if str(k) in words:
                continue
            if number == 0 and _too_long(samples, k):
                words[str(k)] = "not run"
                continue
            native = contestant.load(wire)
            before = perf_counter()
            try:
                contestant.run(native)
            except Exception as error:  # a peer's own failure is part of the answer
                words[str(k)] = type(error).__name__
                continue
            samples[k].append(perf_counter() - before)
        if perf_counter() - start > SHAPE_SECONDS:
            break
    times: dict[str, float | str] = {
        str(k): statistics.median(taken) * 1e3 for k, taken in samples.items() if taken
    }
    return {str(k): times.get(str(k)) or words[str(k)] for k in wires}


def _too_long(samples: dict[int, list[float]], k: int) -> bool:
    """True where a quadratic contestant would need seconds, judged by the sizes before."""
    return any(
        not taken or taken[0] * (k / smaller) ** 2 > SHAPE_LIMIT
        for smaller, taken in samples.items()
        if smaller < k
    )


CELLS: Final[dict[str, Callable[..., dict[str, Any]]]] = {
    "repair": repair,
    "truth": truth,
    "extend": extend,
    "growth": growth,
    "corpus": corpus_bytes,
    "jobs": jobs,
}
