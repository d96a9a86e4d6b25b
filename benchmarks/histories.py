"""Histories, side by side: stopkit, hand loops, and five peers' own repair paths, in one run.

    python benchmarks/histories.py --out docs/benchmarks.md --plot docs/img/histories.svg

Every measurement runs in a fresh process; this one starts them and writes the report.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.generate import APIS, Api
from bench.machine import machine
from bench.report import draw, write

SIZES: Final = (100, 1_000, 10_000, 100_000)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure.  `seconds` is for one state of one history, `corpus` bytes of JSONL."""

    sizes: tuple[int, ...]
    shape_sizes: tuple[int, ...]
    seconds: float
    corpus: int


FULL: Final = Plan(SIZES, (1_000, 4_000, 16_000), 3.0, 160_000_000)
QUICK: Final = Plan(SIZES[:3], (1_000, 4_000), 0.5, 16_000_000)


@dataclass(frozen=True, slots=True)
class Cell:
    """One fresh process: which measurement, of what, with which arguments."""

    kind: str
    api: Api
    size: int | None
    arguments: dict[str, Any]

    def __str__(self) -> str:
        size = f", {self.size:,}" if self.size else ""
        return f"{self.kind}: {self.api}{size}"


def cells(plan: Plan) -> Iterator[Cell]:
    """Every measurement; those that can go wrong for other reasons than time come first."""
    for api in APIS:
        yield Cell("truth", api, None, {"size": 400})
    yield Cell("jobs", "anthropic.messages", None, {"size": plan.corpus})
    for api in APIS:
        yield Cell("corpus", api, None, {"size": plan.corpus // 8, "seconds": plan.seconds * 2})
    for api in APIS:
        yield Cell("growth", api, None, {"sizes": plan.shape_sizes})
    for size in plan.sizes:
        for api in APIS:
            yield Cell("extend", api, size, {"size": size, "seconds": plan.seconds / 3})
    for size in plan.sizes:
        for api in APIS:
            yield Cell("repair", api, size, {"size": size, "seconds": plan.seconds})


def run(cell: Cell) -> dict[str, Any]:
    """What the cell's own process says.

    Raises:
        RuntimeError: with the end of its standard error, when it failed.
    """
    request = json.dumps({"kind": cell.kind, "api": cell.api, **cell.arguments})
    done = subprocess.run(
        [sys.executable, __file__, "--cell", request],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{cell} failed:\n{done.stderr[-3000:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def measure_all(plan: Plan) -> dict[str, Any]:
    """Every answer, `[kind][api]`, or `[kind][api][size]` where there are sizes."""
    start = time.monotonic()
    answers: dict[str, Any] = {"machine": machine()}
    planned = list(cells(plan))
    for number, cell in enumerate(planned, 1):
        minutes, seconds = divmod(int(time.monotonic() - start), 60)
        print(
            f"[{number:2}/{len(planned)} {minutes}:{seconds:02}] {cell}",
            file=sys.stderr,
            flush=True,
        )
        answer = run(cell)
        of_kind = answers.setdefault(cell.kind, {})
        if cell.size is None:
            of_kind[cell.api] = answer
        else:
            of_kind.setdefault(cell.api, {})[cell.size] = answer
    answers["seconds"] = round(time.monotonic() - start)
    return answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="the report, Markdown; default: print it")
    parser.add_argument("--plot", type=Path, help="the plot, SVG")
    parser.add_argument("--quick", action="store_true", help="small sizes, short rounds")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        from bench.measure import CELLS

        request = json.loads(options.cell)
        print(json.dumps(CELLS[request.pop("kind")](**request)))
        return
    answers = measure_all(QUICK if options.quick else FULL)
    if options.plot:
        options.plot.parent.mkdir(parents=True, exist_ok=True)
        draw(answers, options.plot)
    text = write(answers, plot=options.plot, beside=options.out, quick=options.quick)
    if options.out:
        options.out.write_text(text, encoding="utf-8")
        print(f"wrote {options.out}", file=sys.stderr)
    else:
        print(text)


if __name__ == "__main__":
    main()
