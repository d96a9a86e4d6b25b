"""What was aimed at, and whether this run met it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from bench.contestants import CHECK_LOOP, PAIR_LOOP, STOPKIT
from bench.generate import APIS

STATES: Final = ("damaged", "clean")


@dataclass(frozen=True, slots=True)
class Goal:
    goal: str
    measured: str
    met: bool


def goals(answers: dict[str, Any]) -> Iterator[Goal]:
    """Each goal with the worst of what was measured for it."""
    for api in APIS:
        worst, size = max(_ratios(answers, api, "damaged", STOPKIT, PAIR_LOOP))
        yield Goal(
            f"{api}, damaged: at most 2.5 times the pair-only loop",
            f"{worst:.2f} times at worst ({size:,})",
            worst <= 2.5,
        )
    for api in APIS:
        worst, size = max(_ratios(answers, api, "clean", STOPKIT, CHECK_LOOP))
        yield Goal(
            f"{api}, clean: at most 2.5 times the check-only loop",
            f"{worst:.2f} times at worst ({size:,})",
            worst <= 2.5,
        )
    same = all(
        cell["clean"]["same_object"] for api in APIS for cell in answers["repair"][api].values()
    )
    yield Goal(
        "A clean history comes back as the very same object",
        "the same object" if same else "a copy",
        same,
    )
    for name, api, wanted in (
        ("pydantic-ai", "anthropic.messages", 1.8),
        ("LiteLLM", "openai.chat", 2.5),
    ):
        least, size = min(
            pair for state in STATES for pair in _ratios(answers, api, state, name, STOPKIT)
        )
        yield Goal(
            f"At least {wanted} times faster than {name}, at every size, damaged and clean",
            f"{least:.1f} times at worst ({size:,})",
            least >= wanted,
        )
    slowest, api, size = max(
        (cell["extend"], api, size)
        for api, sizes in answers["extend"].items()
        for size, cell in sizes.items()
    )
    yield Goal(
        "`extend` of a turn of 4 messages: at most 10 µs",
        f"{slowest:.1f} µs at worst ({api}, {size:,})",
        slowest <= 10,
    )
    drift, api = max(
        (max(times) / min(times), api)
        for api, sizes in answers["extend"].items()
        if (times := [cell["extend"] for cell in sizes.values()])
    )
    yield Goal(
        "`extend` is flat over the size of the history: slowest at most 2 times the fastest",
        f"{drift:.2f} times at worst ({api})",
        drift <= 2,
    )
    # A shape too slow to be run at two sizes has no exponent: the worst there is.
    power, api, shape = max(
        (math.inf if (power := exponent(rows[STOPKIT])) is None else power, api, shape)
        for api, made in answers["growth"].items()
        for shape, rows in made.items()
    )
    yield Goal(
        "Every shape that breaks linearity stays linear: time grows as k to the power of 1.3 "
        "at most",
        f"{power:.2f} at worst ({api}, {shape})",
        power <= 1.3,
    )
    ratio, api, state = max(
        (cell["seconds"]["stopkit"] / cell["seconds"]["orjson loads + dumps"], api, state)
        for api, states in answers["corpus"].items()
        for state, cell in states.items()
    )
    yield Goal(
        "JSONL, bytes to bytes: at most 2 times orjson loads plus dumps",
        f"{ratio:.2f} times at worst ({api}, {state})",
        ratio <= 2,
    )
    for cell in answers["jobs"].values():
        gain = cell["seconds"]["1"] / cell["seconds"]["2"]
        yield Goal(
            "`stopkit normalize --jobs 2`: at least 1.7 times as fast as one",
            f"{gain:.2f} times",
            gain >= 1.7,
        )


def _ratios(
    answers: dict[str, Any], api: str, state: str, above: str, below: str
) -> Iterator[tuple[float, int]]:
    """One median by the other, of the same interleaved run, with the size."""
    for size, cell in answers["repair"][api].items():
        times = cell[state]["us"]
        yield times[above] / times[below], size


def exponent(times: dict[str, float | str]) -> float | None:
    """p where time grows as k**p between the smallest and the largest k; None where it was not
    measured at two."""
    known = [(int(k), t) for k, t in times.items() if not isinstance(t, str)]
    if len(known) < 2:
        return None
    (k1, t1), (k2, t2) = min(known), max(known)
    return math.log(t2 / t1) / math.log(k2 / k1)
