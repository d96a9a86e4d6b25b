"""Execution units: what runs a tool, and how it is stopped and proved stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stopkit.units.door import attend
from stopkit.units.facts import ProcessFacts, UnitReport
from stopkit.units.function import CallableUnit
from stopkit.units.handle import UnitHandle
from stopkit.units.http import Endpoint, HttpUnit
from stopkit.units.output import Chunk, OutputLimits
from stopkit.units.process import ProcessUnit
from stopkit.units.unit import Unit

if TYPE_CHECKING:
    from stopkit.units.mcp import McpPeer, McpUnit
    from stopkit.units.record import StoreRecords
    from stopkit.units.recover import Recovery, recover, stop_detached

# The MCP SDK is an extra; a database is only loaded where one is used.
_LAZY = {
    "McpPeer": "mcp",
    "McpUnit": "mcp",
    "Recovery": "recover",
    "StoreRecords": "record",
    "recover": "recover",
    "stop_detached": "recover",
}

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
    "Recovery",
    "StoreRecords",
    "Unit",
    "UnitHandle",
    "UnitReport",
    "attend",
    "recover",
    "stop_detached",
]


def __getattr__(name: str) -> object:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{module}"), name)
    # The submodule of the same name took the attribute's place when it was imported.
    globals()[name] = value
    return value
