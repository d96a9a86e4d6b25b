"""Neutral words for histories: they name no provider's wire format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

Api: TypeAlias = Literal["anthropic.messages", "openai.responses", "openai.chat"]
"""The request formats a history can be in."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call as the model made it.

    `arguments` is the parsed object, or the raw text where the call's arguments are free text or
    never became whole JSON.  `occurrence` counts the calls of one history that share an id, from 1.
    """

    id: str
    name: str
    arguments: Mapping[str, object] | str
    occurrence: int = 1


@dataclass(frozen=True, slots=True)
class SendableHistory:
    """A history as the next request may carry it, and what that request must know.

    `sendable` is False while a call is still at work (`pending` names it) or while the history
    awaits a user turn.  `hints` are conditions on the rest of the request, one sentence each.
    """

    api: Api
    items: tuple[object, ...]
    sendable: bool
    pending: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
