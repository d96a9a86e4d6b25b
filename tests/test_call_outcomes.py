"""The account of calls says the same about the same thing, whatever the format."""

from __future__ import annotations

from typing import Any

import pytest
from client_calls import APIS

from stopkit import Api
from stopkit.normalizer import Normalizer, normalize
from stopkit.outcome import Succeeded

Item = dict[str, Any]
every_api = pytest.mark.parametrize("api", APIS)


def asked(api: Api) -> list[Item]:
    """A question, and a model turn with the call `call_1`."""
    match api:
        case "anthropic.messages":
            block = {"type": "tool_use", "id": "call_1", "name": "f", "input": {}}
            call = {"role": "assistant", "content": [block]}
        case "openai.responses":
            call = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
        case "openai.chat":
            function = {"name": "f", "arguments": "{}"}
            block = {"id": "call_1", "type": "function", "function": function}
            call = {"role": "assistant", "content": None, "tool_calls": [block]}
    return [{"role": "user", "content": "go"}, call]


def answer(api: Api, text: str) -> Item:
    match api:
        case "anthropic.messages":
            block = {"type": "tool_result", "tool_use_id": "call_1", "content": text}
            return {"role": "user", "content": [block]}
        case "openai.responses":
            return {"type": "function_call_output", "call_id": "call_1", "output": text}
        case "openai.chat":
            return {"role": "tool", "tool_call_id": "call_1", "content": text}


@every_api
def test_a_second_result_behind_a_later_turn_does_not_replace_the_first(api: Api) -> None:
    later = [{"role": "assistant", "content": "on"}, answer(api, "two")]
    result = normalize([*asked(api), answer(api, "one"), *later], api=api)
    assert [change.kind for change in result.changes] == ["delivered"]
    (call,) = result.outcomes
    assert call.outcome.output == "one"
    assert isinstance(call.outcome, Succeeded)
    assert not call.synthetic


@every_api
@pytest.mark.parametrize(
    ("evidence", "reason"),
    [({}, "left open"), ({"call_1": {"status": "running"}}, "still running")],
    ids=["live", "running"],
)
def test_a_call_that_stays_open_says_why(
    api: Api, evidence: dict[str, dict[str, object]], reason: str
) -> None:
    result = normalize(asked(api), api=api, evidence=evidence, live="keep")
    (call,) = result.outcomes
    assert (call.status, call.outcome.reason, call.synthetic) == ("unknown", reason, False)
    assert result.pending == ("call_1",)


@pytest.mark.parametrize("mark", ["#", "#0", "#²", "#" + "9" * 5000])
def test_what_is_no_occurrence_is_part_of_the_id(mark: str) -> None:
    done = {"status": "succeeded", "output": "late"}
    history = asked("openai.chat")
    (call,) = normalize(history, api="openai.chat", evidence={f"call_1{mark}": done}).outcomes
    assert call.status == "unknown"
    growing = Normalizer("openai.chat")
    growing.extend(history)
    growing.request()
    growing.resolve(f"call_1{mark}", done)
    assert len(growing.request().history) == 3
