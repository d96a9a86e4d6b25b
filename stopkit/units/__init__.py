"""Execution units: what runs a tool, and how it is stopped and proved stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stopkit.units.facts import ProcessFacts, UnitReport
from stopkit.units.function import CallableUnit
from stopkit.units.http import Endpoint, HttpUnit
from stopkit.units.output import Chunk, OutputLimits
from stopkit.units.process import ProcessUnit
from stopkit.units.unit import Unit

if TYPE_CHECKING:
    from stopkit.units.mcp import McpPeer, McpUnit

# The SDK is an extra, and slow to import.
_LAZY = {"McpPeer": "mcp", "McpUnit": "mcp"}

__all__ = [
    "CallableUnit",
    "Chunk",
    "Endpoint",
    "HttpUnit",
    "McpPeer",
    "McpUnit",
    "OutputLimits",
    "ProcessFacts",
    "ProcessUnit",
    "Unit",
    "UnitReport",
]


def __getattr__(name: str) -> object:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{module}"), name)
