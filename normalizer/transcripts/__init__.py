"""Stored transcripts: Claude Code session files and Codex rollouts, read into histories."""

from stopkit.normalizer.transcripts.claude_code import read_claude_code
from stopkit.normalizer.transcripts.codex import read_codex
from stopkit.normalizer.transcripts.detect import Format, detect, load
from stopkit.normalizer.transcripts.transcript import (
    Finding,
    FindingCode,
    Kind,
    RecordedCall,
    Source,
    Transcript,
    Turn,
    TurnEnd,
    Where,
)

__all__ = [
    "Finding",
    "FindingCode",
    "Format",
    "Kind",
    "RecordedCall",
    "Source",
    "Transcript",
    "Turn",
    "TurnEnd",
    "Where",
    "detect",
    "load",
    "read_claude_code",
    "read_codex",
]
