"""The dialect `openai.chat`: the messages of OpenAI's Chat Completions."""

from __future__ import annotations

from stopkit.normalizer.dialects.openai_chat_check import violations
from stopkit.normalizer.dialects.openai_chat_scan import scan

__all__ = ["scan", "violations"]
