"""The dialect `openai.responses`: input items of the Responses API."""

from __future__ import annotations

from stopkit.normalizer.dialects.openai_responses_check import violations
from stopkit.normalizer.dialects.openai_responses_scan import scan

__all__ = ["scan", "violations"]
