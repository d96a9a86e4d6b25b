"""What a reader gives, `normalize` takes: a history that can be sent, and no outcome lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stopkit.normalizer import check, normalize
from stopkit.normalizer.transcripts import load

RECORDED = Path(__file__).parent / "data" / "recorded"
FACTS = sorted(RECORDED.rglob("*.facts.json"))


@pytest.mark.parametrize("path", FACTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_recording_becomes_a_history_with_its_true_outcomes(path: Path) -> None:
    transcript = load(path.with_name(path.name.replace(".facts.json", ".jsonl")))
    repaired = normalize(transcript.history, api=transcript.api, evidence=transcript.evidence)
    assert check(repaired.history, api=transcript.api).valid
    assert not repaired.pending
    truths = {fact["id"]: fact for fact in json.loads(path.read_text())["calls"]}
    held = {recorded.call.id for recorded in transcript.calls if recorded.where == "history"}
    assert {outcome.call_id for outcome in repaired.outcomes} == held
    for outcome in repaired.outcomes:
        truth = truths[outcome.call_id]
        assert outcome.status in {truth["truth"], *truth.get("also_acceptable", ())}
