"""The brute-force checker and the generators, held against each other and against known shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import brute
import pytest
import shapes
from hypothesis import given
from hypothesis import strategies as st
from shapes import HI, SEARCH, A, C, Item, R, call, model, text
from strategies import damaged_history, requests, texts_of, valid_history

from stopkit.normalizer.rules import RULES

APIS = (A, R, C)
SHAPES = [
    pytest.param(api, items, request, expected, id=f"{api.rpartition('.')[2]}: {name}")
    for api, rows in shapes.SHAPES
    for name, items, request, expected in rows
]


@pytest.mark.parametrize(("api", "items", "request_", "expected"), SHAPES)
def test_error_shapes(api: str, items: list[Any], request_: Item, expected: list[str]) -> None:
    assert [" ".join(entry) for entry in brute.violations(api, items, request_)] == expected


def test_every_rule_of_a_history_has_a_shape() -> None:
    covered = {
        entry.split()[0]
        for _, rows in shapes.SHAPES
        for _, _, _, expected in rows
        for entry in expected
    }
    judged = {rule.id for rule in RULES.values() if rule.scope in ("prefix", "send")}
    # GEN-2PRED-1 is the difference between the scopes themselves.
    assert judged - covered == {"GEN-2PRED-1"}
    assert covered <= judged


@pytest.mark.parametrize(
    ("items", "request_", "expected"),
    [
        ([], {}, False),
        ([HI], {}, True),
        ([HI, model(text())], {}, False),
        ([HI, model(text())], {"model": "claude-3-haiku-20240307"}, True),
        ([HI, model(text())], {"model": "claude-opus-5-5"}, False),
        ([HI, model(SEARCH)], {}, True),
        ([HI, model(call("a"))], {}, False),
    ],
)
def test_sendable_at_the_end(items: list[Any], request_: Item, expected: bool) -> None:
    assert brute.valid(A, items, request_)
    assert brute.sendable(A, items, request_) is expected


@pytest.mark.parametrize("api", APIS)
@given(data=st.data())
def test_built_histories_are_valid(api: str, data: st.DataObject) -> None:
    items = data.draw(valid_history(api))
    assert [entry for entry in brute.violations(api, items) if entry[2] == "prefix"] == []
    texts = texts_of(api, items)
    assert texts
    assert all(json.dumps(items).count(text) == 1 for text in texts)


@pytest.mark.parametrize("api", APIS)
@given(data=st.data())
def test_damage_keeps_to_the_forms_that_can_be_repaired(api: str, data: st.DataObject) -> None:
    items = data.draw(damaged_history(api))
    json.dumps(items, allow_nan=False)
    request = data.draw(requests(api))
    rules = {rule for rule, _, _ in brute.violations(api, items, request)}
    assert rules <= RULES.keys()
    assert not {rule for rule in rules if rule.startswith("GEN-")}


BUGS = Path(__file__).parent / "data" / "cases" / "bugs"
API_OF = {"anthropic_messages": A, "openai_responses": R, "openai_chat": C}
CASES = [
    case
    for path in sorted(BUGS.glob("*.json"))
    if (case := json.loads(path.read_text()))["api"] in API_OF
]


# What these two show is told by other rules: the result stands behind the turn it would answer, and
# the binding of later thinking is a hint.
OTHER_RULES = {
    "real-result-behind-a-later-assistant-turn": ["ANT-PAIR-1", "ANT-PAIR-4"],
    "repair-edits-prefix-of-bound-thinking": ["ANT-PAIR-1"],
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["id"]))
def test_damaged_cases_are_flagged(case: dict[str, Any]) -> None:
    """Each input breaks one of the rules its case names, or may not be sent yet."""
    api = API_OF[case["api"]]
    request = dict(case["input"])
    items = request.pop("input" if api == R else "messages")
    found = brute.violations(api, items, request)
    named: list[str] = OTHER_RULES.get(case["id"]) or case["rules"]
    assert {rule for rule, _, _ in found} & set(named)
    only_send = case["expect"].get("sendable") is False
    assert brute.valid(api, items, request) is only_send


def test_there_are_cases_for_every_api() -> None:
    assert {case["api"] for case in CASES} == set(API_OF)
