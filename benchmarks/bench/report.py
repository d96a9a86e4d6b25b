"""The numbers of one run as Markdown, and as a plot."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from bench.contestants import CHECK_LOOP, PAIR_LOOP, STOPKIT
from bench.generate import APIS, KINDS
from bench.goals import STATES, exponent, goals

_HEAD: Final = """\
# Benchmarks

Made by `make bench`, all in one run, side by side. Nothing below was typed by hand.

- Times are medians, of processor time; `extend` and `--jobs` are by the wall clock. Contestants of
  a table stand in one process and take turns, a sample each a round, another one first in every
  round; each size of a history is a fresh process. A ratio is one median by another of the same
  run.
- The garbage collector runs as it always does (what was imported is frozen out of it for the
  shapes alone). Freeing what a call made is part of its time.
- Histories are parsed from JSON: turns of a question, an answer with two parallel calls, two
  results of about 500 bytes, a closing answer. Damaged: 5 % of the turns have a result missing, a
  result without a call, a result twice, or a user message before the results.
- **A peer gets its own message objects ready-made.** Building them from the wire format, and
  writing them back, is not in its time; stopkit and the hand loops read the wire format itself.
- The hand loops know calls and results and no other rule; they give no account. They are the
  floor, not an alternative.
"""

_LIMITS: Final = """\
## What these numbers do not say

- The sessions' storage of openai-agents and of Strands is left out, and so is everything else
  that a peer does for a request. Peers' log output is off.
- The machine may be shared. Compare within a table; the same row moves by some 10 % from run to
  run at small sizes and by more at 100,000 messages, where caches decide.
- Growth is told by a clock here. That each shape is linear is held by a test that counts work.
"""

_JUDGED: Final = """\
A fast row may do less. Whether calls and results pair after each one, for histories with one kind
of damage, and how many recorded results are no longer in the history. Not every loss is a fault
(dropping is some peers' policy). The judge is the check-only loop for all of them. What stopkit
repaired also passed its own `check`, at every size: otherwise there would be no report.
"""

_GROWTH: Final = """\
Growth is p where time grows as k to the power of p, from the smallest k to the largest: 1 is
linear, 2 quadratic. A size is not run where it may take seconds.
"""

_PIPELINE: Final = """\
One conversation of about 10 turns a line. The pipeline is the command's own, in memory; a clean
line keeps its bytes. "Changes counted" also tells what was done, as the command does.
"""

_COLOURS: Final = ("#c2410c", "#a16207", "#4d7c0f")


def write(answers: dict[str, Any], *, plot: Path | None, beside: Path | None, quick: bool) -> str:
    """The report; `plot` is linked to as seen from the folder of `beside`."""
    parts = [_HEAD, _environment(answers, quick), _goals(answers), _repair(answers)]
    if plot is not None:
        folder = beside.parent if beside is not None else Path()
        link = Path(os.path.relpath(plot, folder)).as_posix()
        parts.insert(3, f"![Microseconds a message over the length of a history]({link})\n")
    parts += [
        _truth(answers),
        _extend(answers),
        _growth(answers),
        _corpus(answers),
        _LIMITS,
    ]
    return "\n".join(parts)


def _environment(answers: dict[str, Any], quick: bool) -> str:
    machine = answers["machine"]
    versions: dict[str, str] = {}
    timed: dict[str, str] = {}
    for sizes in answers["repair"].values():
        for cell in sizes.values():
            versions.update(cell["versions"])
            timed.update(cell["timed"])
    named = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    rows = "".join(f"- {name}: {what}\n" for name, what in timed.items())
    scale = "A short run (`--quick`): " if quick else ""
    return (
        f"{scale}{machine['python']}, {machine['system']}, {machine['processor']}, "
        f"{machine['cores']} cores, load {machine['load']} at the start, "
        f"{answers['seconds']} seconds in all.\n\n{named}.\n\nWhat each row times:\n\n{rows}"
    )


def _goals(answers: dict[str, Any]) -> str:
    rows = [(goal.goal, goal.measured, _yes(goal.met)) for goal in goals(answers)]
    return "## Goals\n\n" + _table(("goal", "measured", "met?"), rows)


def _repair(answers: dict[str, Any]) -> str:
    parts = ["## Repair, µs a message\n"]
    for api in APIS:
        sizes = answers["repair"][api]
        for state in STATES:
            cells = [sizes[size][state]["us"] for size in sizes]
            rows = [(name, *(_number(cell[name]) for cell in cells)) for name in cells[0]]
            floor = PAIR_LOOP if state == "damaged" else CHECK_LOOP
            rows.append(
                (
                    f"*{STOPKIT} / {floor}*",
                    *(f"*{cell[STOPKIT] / cell[floor]:.2f}*" for cell in cells),
                )
            )
            rows += [
                (
                    f"*{name} / {STOPKIT}*",
                    *(f"*{cell[name] / cell[STOPKIT]:.1f}*" for cell in cells),
                )
                for name in cells[0]
                if not name.startswith(("stopkit", "hand loop"))
            ]
            parts += [f"### {api}, {state}\n", _table(("", *_sizes(sizes)), rows)]
    return "\n".join(parts)


def _truth(answers: dict[str, Any]) -> str:
    parts = [
        "## What each of them repairs\n",
        _JUDGED,
    ]
    for api in APIS:
        kinds = answers["truth"][api]
        rows = [(name, *(found[kind] for kind in KINDS)) for name, found in kinds.items()]
        parts += [f"### {api}\n", _table(("", *KINDS), rows)]
    return "\n".join(parts)


def _extend(answers: dict[str, Any]) -> str:
    made = answers["extend"]
    rows = [
        (
            f"{api}, {part}",
            *(_number(cell[part]) for cell in made[api].values()),
        )
        for api in APIS
        for part in next(iter(made[api].values()))
    ]
    return (
        "## One more turn in a living history, µs\n\n"
        "`Normalizer.extend` with a turn of 4 messages or items (call, result, answer, next "
        "question) on a clean history of each length: several times in a row; right behind a "
        "`request()`, whose copy of all pointers left the caches cold; and that `request()`.\n\n"
    ) + _table(("", *_sizes(made[APIS[0]])), rows)


def _growth(answers: dict[str, Any]) -> str:
    parts = [
        "## Shapes that break linearity, milliseconds in all\n",
        _GROWTH,
    ]
    for api in APIS:
        shapes = answers["growth"][api]
        sizes = list(next(iter(next(iter(shapes.values())).values())))
        rows = [
            (
                name,
                shape,
                *(_number(times[k]) for k in sizes),
                "" if (power := exponent(times)) is None else f"{power:.2f}",
            )
            for shape, found in shapes.items()
            for name, times in found.items()
        ]
        heads = ("", "shape", *(f"k={int(k):,}" for k in sizes), "growth")
        parts += [f"### {api}\n", _table(heads, rows)]
    return "\n".join(parts)


def _corpus(answers: dict[str, Any]) -> str:
    rows: list[tuple[str, ...]] = []
    for api in APIS:
        for state, cell in answers["corpus"][api].items():
            times = cell["seconds"]
            base = times["orjson loads + dumps"]
            rows += [
                (
                    f"{api}, {state}",
                    name,
                    f"{cell['bytes'] / taken / 1e6:.0f}",
                    f"{taken / base:.2f}",
                )
                for name, taken in times.items()
            ]
    parts = [
        "## JSONL corpora, bytes to bytes, one core\n",
        _PIPELINE,
        _table(("", "", "MB a second", "by orjson"), rows),
        "The whole command, start and files included, on damaged conversations:\n",
    ]
    for api, cell in answers["jobs"].items():
        one, two = cell["seconds"]["1"], cell["seconds"]["2"]
        parts.append(
            _table(
                (f"{api}, {cell['bytes'] / 1e6:.0f} MB", "seconds", "MB a second", "gain"),
                [
                    ("`--jobs 1`", f"{one:.2f}", f"{cell['bytes'] / one / 1e6:.0f}", ""),
                    (
                        "`--jobs 2`",
                        f"{two:.2f}",
                        f"{cell['bytes'] / two / 1e6:.0f}",
                        f"{one / two:.2f}",
                    ),
                ],
            )
        )
    return "\n".join(parts)


def _sizes(sizes: Iterable[int]) -> Iterator[str]:
    return (f"{size:,}" for size in sizes)


def _number(value: float | str) -> str:
    if isinstance(value, str):
        return value
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _yes(met: bool) -> str:
    return "yes" if met else "**no**"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def draw(answers: dict[str, Any], path: Path) -> None:
    """µs a message over the length of the history, one panel an API, as SVG."""
    import matplotlib as mpl
    from matplotlib import pyplot, ticker

    mpl.use("Agg")
    # The same numbers give the same file.
    mpl.rcParams.update({"svg.hashsalt": "stopkit", "svg.fonttype": "none", "font.size": 9})
    figure, panels = pyplot.subplots(1, len(APIS), figsize=(11, 4.6), sharey=True)
    for panel, api in zip(panels, APIS, strict=True):
        sizes = answers["repair"][api]
        names = list(next(iter(sizes.values()))["clean"]["us"])
        colours = iter(_COLOURS)
        for name in names:
            if name == STOPKIT:
                style = {"color": "#1d4ed8", "linewidth": 2.5}
            elif name in (PAIR_LOOP, CHECK_LOOP):
                style = {"color": "#6b7280", "linewidth": 1.2}
            elif name.startswith("stopkit"):
                continue
            else:
                style = {"color": next(colours), "linewidth": 1.5}
            for state, dash in (("damaged", "-"), ("clean", ":")):
                points = [
                    (cell[state]["messages"], cell[state]["us"][name])
                    for cell in sizes.values()
                    if name in cell[state]["us"]
                ]
                if points:
                    label = name if dash == "-" or name == CHECK_LOOP else None
                    panel.plot(*zip(*points, strict=True), dash, marker=".", label=label, **style)
        panel.set(xscale="log", yscale="log", title=api, xlabel="messages")
        panel.grid(alpha=0.3)
        panel.xaxis.set_major_formatter("{x:,.0f}")
        panel.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_minor_locator(ticker.NullLocator())
        panel.legend(
            frameon=False, fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.16)
        )
    panels[0].set_ylabel("µs a message")
    figure.suptitle("Repair of a history: 5 % damaged (solid), clean (dotted)")
    figure.tight_layout()
    figure.savefig(path, format="svg", facecolor="white", metadata={"Date": None})
    pyplot.close(figure)
