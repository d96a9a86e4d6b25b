"""The words of made-up results: one wording an outcome, read back exactly (OUT-1).

The mark `rule` names the rules that a test holds; docs/rules.md lists them.
"""

from __future__ import annotations

from typing import Any

import pytest
from mended import made_words, mended
from shapes import (
    APIS,
    OPEN,
    A,
)

from stopkit import STATUSES, Api, Outcome, parse_outcome
from stopkit.normalizer import (
    normalize,
    read_outcome,
)
from stopkit.normalizer.wording import made_up

OUTCOMES: list[dict[str, Any]] = [
    {"status": "succeeded", "output": "42 rows", "key": "op_a"},
    {"status": "succeeded", "effects": "unverified", "reason": "told by the service"},
    {"status": "failed", "output": "no such file\n", "exit_code": 2, "effects": "none"},
    {"status": "failed", "reason": "its own deadline", "effects": "confirmed"},
    {"status": "denied", "by": "policy", "reason": "not on a Friday"},
    {"status": "denied"},
    {"status": "not_started", "reason": "call_incomplete", "cause": "user"},
    {
        "status": "stopped",
        "cause": "deadline",
        "after": 2.5,
        "signal": 15,
        "output": "[stopkit outcome {}]\nhalf a line",
        "key": "op_b",
    },
    {"status": "stopped", "exit_code": 130, "effects": "confirmed_absent"},
    {"status": "unknown", "check": "look at the ledger", "key": "op_c", "effects": "confirmed"},
    {"status": "unknown", "reason": 'quotes " and ] and\nlines', "output": "é \u2028"},
]


def test_the_outcomes_above_name_every_status_and_field() -> None:
    assert {fields["status"] for fields in OUTCOMES} == set(STATUSES)
    models = {type(parse_outcome(fields)) for fields in OUTCOMES}
    named = {name for fields in OUTCOMES for name in fields}
    assert {name for one in models for name in one.model_fields} - named == {"evidence"}


@pytest.mark.rule("OUT-1")
@pytest.mark.parametrize("fields", OUTCOMES, ids=lambda fields: str(fields["status"]))
def test_words_are_read_back_exactly(fields: dict[str, Any]) -> None:
    outcome = parse_outcome(fields)
    assert read_outcome(made_up(outcome)) == outcome


@pytest.mark.rule("OUT-1")
@pytest.mark.parametrize(
    "words",
    [
        "done",
        "",
        "[stopkit outcome ",
        "[stopkit outcome {}]\n",
        '[stopkit outcome {"status":"done"}]\nwords',
        '[stopkit outcome {"status":"unknown"}] words',
        'so: [stopkit outcome {"status":"unknown"}]\nwords',
        '[stopkit outcome {"status":"unknown","output_chars":99}]\nshort',
    ],
)
def test_other_words_are_no_outcome(words: str) -> None:
    assert read_outcome(words) is None


REFUSAL = ("refus", "reject", "denied", "deni", "disallow", "not allowed", "declin")
CANCEL = ("cancel", "abort", "interrupt")
RETRY = ("retry", "try again", "run it again", "call it again", "please repeat")
SUCCESS = ("success", "completed", "finished", "done.", "worked")


@pytest.mark.rule("OUT-1", "ANT-PAIR-1", "OAI-PAIR-1", "CHAT-PAIR-1")
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("status", STATUSES)
def test_the_words_say_what_is_known_and_no_more(api: Api, status: str) -> None:
    done = mended(api, OPEN[api], evidence={i: {"status": status} for i in "ab"})
    words, other = made_words(done)
    assert words == other
    outcome = read_outcome(words)
    assert outcome is not None
    assert outcome.status == status
    assert [(one.status, one.synthetic) for one in done.outcomes] == [(status, True)] * 2
    sentences = words.partition("]\n")[2].lower()
    assert not [hint for hint in (*RETRY, *CANCEL, "the user") if hint in sentences]
    if status != "denied":
        assert not [word for word in REFUSAL if word in sentences]
    if status != "succeeded":
        assert not [word for word in SUCCESS if word in sentences]
    ran_not = "it had no effects" in sentences
    assert ran_not is (status in ("denied", "not_started"))
    warned = "before repeating it" in sentences
    assert warned is (status in ("failed", "stopped", "unknown"))


@pytest.mark.rule("OUT-1")
@pytest.mark.parametrize("api", APIS)
def test_without_evidence_the_outcome_is_unknown(api: Api) -> None:
    done = mended(api, OPEN[api])
    assert {read_outcome(words) for words in made_words(done)} == {
        parse_outcome({"status": "unknown", "reason": "no_result_recorded"})
    }


@pytest.mark.rule("OUT-1")
@pytest.mark.parametrize("api", APIS)
def test_evidence_goes_into_the_words_and_comes_back_on_a_later_pass(api: Api) -> None:
    known: Outcome = parse_outcome(
        {"status": "stopped", "cause": "user", "output": "half", "key": "op_1", "signal": 9}
    )
    done = mended(api, OPEN[api], evidence={"a": known})
    assert known in [read_outcome(words) for words in made_words(done)]
    later = normalize(list(done.history), api=api)
    assert later.outcomes[0].outcome == known
    assert later.outcomes[0].synthetic


@pytest.mark.rule("OUT-1", "ANT-TR-1")
@pytest.mark.parametrize("status", STATUSES)
def test_only_a_result_that_succeeded_is_no_error(status: str) -> None:
    done = mended(A, OPEN[A], evidence={"a": {"status": status}})
    made = done.history[2]["content"][0]
    assert made.get("is_error", False) is (status != "succeeded")
