"""Work grows with the history, not with its square, whatever the history looks like.

Work is counted in function calls and in lines run inside the package, at n and at 2n: no clock.
What a C function does is not seen: a sort or a copy counts as its line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

import stopkit.normalizer
from stopkit import Api
from stopkit.normalizer import check, normalize
from stopkit.normalizer.repair import dialect

Item = dict[str, Any]
Shape = Callable[[Api, int], list[Any]]

SIZE = 70
GROWTH = 2.6
"""A doubled history may cost this many times as much; n log n stays below, n squared does not."""


# --- items of each API ---------------------------------------------------------------------------


def user(text: str) -> Item:
    return {"role": "user", "content": text}


def says(text: str) -> Item:
    return {"role": "assistant", "content": text}


def asks(api: Api, ids: list[str]) -> list[Item]:
    """One model turn with these calls."""
    match api:
        case "anthropic.messages":
            blocks = [{"type": "tool_use", "id": i, "name": "f", "input": {}} for i in ids]
            return [{"role": "assistant", "content": blocks}]
        case "openai.responses":
            call = {"type": "function_call", "name": "f", "arguments": "{}"}
            return [{**call, "call_id": call_id} for call_id in ids]
        case "openai.chat":
            function = {"name": "f", "arguments": "{}"}
            made = [{"id": i, "type": "function", "function": function} for i in ids]
            return [{"role": "assistant", "content": None, "tool_calls": made}]


def result(api: Api, call_id: str, text: str) -> Item:
    match api:
        case "anthropic.messages":
            block = {"type": "tool_result", "tool_use_id": call_id, "content": text}
            return {"role": "user", "content": [block]}
        case "openai.responses":
            return {"type": "function_call_output", "call_id": call_id, "output": text}
        case "openai.chat":
            return {"role": "tool", "tool_call_id": call_id, "content": text}


def names(n: int) -> list[str]:
    return [f"call_{number}" for number in range(n)]


# --- shapes --------------------------------------------------------------------------------------


def clean(api: Api, n: int) -> list[Any]:
    turns: list[Any] = []
    for name in names(n):
        turns += [user("go"), *asks(api, [name]), result(api, name, "r"), says("so")]
    return turns


def every_call_unanswered(api: Api, n: int) -> list[Any]:
    turns: list[Any] = [user("go")]
    for name in names(n):
        turns += [*asks(api, [name]), user("stop")]
    return turns


def one_turn_unanswered(api: Api, n: int) -> list[Any]:
    return [user("go"), *asks(api, names(n)), user("stop")]


def one_turn_answered(api: Api, n: int) -> list[Any]:
    answers = [result(api, name, f"r {name}") for name in names(n)]
    return [user("go"), *asks(api, names(n)), *answers, says("so")]


def one_turn_answered_backwards_with_words_between(api: Api, n: int) -> list[Any]:
    turns: list[Any] = [user("go"), *asks(api, names(n))]
    for name in reversed(names(n)):
        turns += [user("and?"), result(api, name, f"r {name}")]
    return turns


def results_behind_a_later_turn(api: Api, n: int) -> list[Any]:
    answers = [result(api, name, f"r {name}") for name in names(n)]
    return [user("go"), *asks(api, names(n)), user("stop"), says("so"), *answers, user("next")]


def results_of_many_turns_at_the_tail(api: Api, n: int) -> list[Any]:
    answers = [result(api, name, f"r {name}") for name in names(n)]
    return [*every_call_unanswered(api, n), says("so"), *answers, user("next")]


def results_before_their_calls(api: Api, n: int) -> list[Any]:
    answers = [result(api, name, f"r {name}") for name in names(n)]
    return [user("go"), *answers, *every_call_unanswered(api, n)]


def orphans(api: Api, n: int) -> list[Any]:
    return [user("go"), *(result(api, name, f"r {name}") for name in names(n)), says("so")]


def copies_of_one_result(api: Api, n: int) -> list[Any]:
    return [user("go"), *asks(api, ["c"]), *([result(api, "c", "r")] * n), says("so")]


def differing_results_of_one_call(api: Api, n: int) -> list[Any]:
    answers = [result(api, "c", f"r {name}") for name in names(n)]
    return [user("go"), *asks(api, ["c"]), *answers, says("so")]


def one_id_in_one_turn(api: Api, n: int) -> list[Any]:
    answers = [result(api, "c", f"r {name}") for name in names(n)]
    return [user("go"), *asks(api, ["c"] * n), *answers, says("so")]


def one_id_in_every_turn(api: Api, n: int) -> list[Any]:
    turns: list[Any] = []
    for name in names(n):
        turns += [user("go"), *asks(api, ["c"]), user("stop"), result(api, "c", f"r {name}")]
    return turns


def a_run_of_user_messages(api: Api, n: int) -> list[Any]:
    return [*(user(f"line {number}") for number in range(n)), *asks(api, ["c"]), user("stop")]


def a_run_of_model_messages(api: Api, n: int) -> list[Any]:
    return [user("go"), *(says(f"line {number}") for number in range(n)), *asks(api, ["c"])]


def copies_of_one_model_message(api: Api, n: int) -> list[Any]:
    return [user("go"), *(asks(api, ["c"]) * n), result(api, "c", "r"), user("next")]


def blank_messages(api: Api, n: int) -> list[Any]:
    return [user("go"), *([says(""), user(" ")] * n), says("so")]


def model_first(api: Api, n: int) -> list[Any]:
    return [says("so"), *every_call_unanswered(api, n)]


def wrong_ids(api: Api, n: int) -> list[Any]:
    turns: list[Any] = [user("go")]
    for name in names(n):
        odd = f"{name} {'é' * 70}"
        turns += [*asks(api, [odd]), result(api, odd, "r")]
    return turns


COMMON: list[Shape] = [
    clean,
    every_call_unanswered,
    one_turn_unanswered,
    one_turn_answered,
    one_turn_answered_backwards_with_words_between,
    results_behind_a_later_turn,
    results_of_many_turns_at_the_tail,
    results_before_their_calls,
    orphans,
    copies_of_one_result,
    differing_results_of_one_call,
    one_id_in_one_turn,
    one_id_in_every_turn,
    a_run_of_user_messages,
    a_run_of_model_messages,
    copies_of_one_model_message,
    blank_messages,
    model_first,
    wrong_ids,
]


def server_pair(name: str) -> tuple[Item, Item]:
    call = {"type": "server_tool_use", "id": f"srvtoolu_{name}", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": call["id"], "content": []}
    return call, found


def deferred_server_calls(api: Api, n: int) -> list[Any]:
    """Each turn answers the last one's server call and opens another, beside a client's call."""
    turns: list[Any] = [user("go")]
    open_result: list[Item] = []
    for name in names(n):
        call, found = server_pair(name)
        (asked,) = asks(api, [name])
        turns.append({"role": "assistant", "content": [*open_result, call, *asked["content"]]})
        turns.append(result(api, name, "r"))
        turns[-1]["content"] = [*turns[-1]["content"], {"type": "text", "text": f"later {name}"}]
        open_result = [found]
    return turns


def open_server_calls(api: Api, n: int) -> list[Any]:
    turns: list[Any] = [user("go")]
    for name in names(n):
        turns += [{"role": "assistant", "content": [server_pair(name)[0]]}, user(f"w {name}")]
    return turns


def server_results_without_calls(api: Api, n: int) -> list[Any]:
    found = [server_pair(name)[1] for name in names(n)]
    return [user("go"), {"role": "assistant", "content": found}, user("next")]


def system_messages(api: Api, n: int) -> list[Any]:
    del api
    words = [{"role": "system", "content": f"rule {number}"} for number in range(n)]
    return [user("go"), says("so"), *words, user("next")]


def cache_markers(api: Api, n: int) -> list[Any]:
    del api
    mark = {"type": "ephemeral"}
    block = {"type": "text", "text": "x", "cache_control": mark}
    return [{"role": "user", "content": [block] * n}, {"role": "assistant", "content": [block] * n}]


def thinking_without_signature(api: Api, n: int) -> list[Any]:
    del api
    blocks = [{"type": "thinking", "thinking": f"t {number}"} for number in range(n)]
    return [user("go"), {"role": "assistant", "content": blocks}, user("next")]


def reasoning_before_an_orphan_call(api: Api, n: int) -> list[Any]:
    run = [{"type": "reasoning", "id": f"rs_{number}", "summary": []} for number in range(n)]
    return [user("go"), *run, *asks(api, ["c"]), user("stop")]


def reasoning_that_led_nowhere(api: Api, n: int) -> list[Any]:
    turns: list[Any] = []
    for number in range(n):
        turns += [user("go"), {"type": "reasoning", "id": f"rs_{number}", "summary": []}]
    return turns


def unanswered_programs(api: Api, n: int) -> list[Any]:
    turns: list[Any] = [user("go")]
    for name in names(n):
        program = {"type": "program", "id": f"prog_{name}", "call_id": f"p_{name}", "code": "x"}
        caller = {"type": "program", "caller_id": f"p_{name}"}
        turns += [{**program, "fingerprint": "x"}]
        turns += [{**call, "caller": caller} for call in asks(api, [name])]
    return [*turns, says("so"), user("next")]


def one_item_id(api: Api, n: int) -> list[Any]:
    turns: list[Any] = [user("go")]
    for name in names(n):
        turns += [{**call, "id": "fc_1"} for call in asks(api, [name])]
    return [*turns, *(result(api, name, "r") for name in names(n))]


def undecided_approvals(api: Api, n: int) -> list[Any]:
    del api
    asked = {"type": "mcp_approval_request", "server_label": "s", "name": "f", "arguments": "{}"}
    return [
        user("go"),
        *({**asked, "id": f"mcpr_{number}"} for number in range(n)),
        user("stop"),
        says("so"),
    ]


def legacy_calls(api: Api, n: int) -> list[Any]:
    del api
    turns: list[Any] = [user("go")]
    for number in range(n):
        call = {"name": f"f{number}", "arguments": "{}"}
        turns += [{"role": "assistant", "content": None, "function_call": call}, user("stop")]
    return turns


OWN: dict[Api, list[Shape]] = {
    "anthropic.messages": [
        deferred_server_calls,
        open_server_calls,
        server_results_without_calls,
        system_messages,
        cache_markers,
        thinking_without_signature,
    ],
    "openai.responses": [
        reasoning_before_an_orphan_call,
        reasoning_that_led_nowhere,
        unanswered_programs,
        one_item_id,
        undecided_approvals,
    ],
    "openai.chat": [legacy_calls],
}

CASES = [(api, shape) for api, own in OWN.items() for shape in (*COMMON, *own)]


# --- counting ------------------------------------------------------------------------------------

_PACKAGE = stopkit.normalizer.__file__.rpartition("/")[0]


def work_of(task: Callable[[], object]) -> int:
    """Python function calls, and lines of the package, that `task` takes."""
    count = 0

    def on_event(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        count += event in ("call", "line")
        return on_event if frame.f_code.co_filename.startswith(_PACKAGE) else None

    traced = sys.gettrace()
    sys.settrace(on_event)
    try:
        task()
    finally:
        sys.settrace(traced)
    return count


def whole_account(api: Api, history: list[Any]) -> None:
    answer = normalize(history, api=api)
    assert answer.changes is not None
    assert answer.outcomes is not None
    answer.undo()


def test_the_counter_sees_a_square() -> None:
    def square(n: int) -> None:
        items: list[int] = []
        for number in range(n):
            if not any(number == other for other in items):
                items.append(number)

    def counted(n: int) -> int:
        return work_of(lambda: square(n))

    assert counted(200) > 3 * counted(100)


@pytest.mark.parametrize(
    ("api", "shape"), CASES, ids=[f"{api}-{shape.__name__}" for api, shape in CASES]
)
def test_work_doubles_with_the_history(api: Api, shape: Shape) -> None:
    dialect(api)
    whole_account(api, shape(api, 3))
    small, large = shape(api, SIZE), shape(api, 2 * SIZE)
    for task in (whole_account, lambda api, history: check(history, api=api)):
        cost = work_of(lambda task=task: task(api, small))  # type: ignore[misc]
        doubled = work_of(lambda task=task: task(api, large))  # type: ignore[misc]
        assert doubled < GROWTH * cost + 100, (cost, doubled)
