"""Execution units: what runs a tool, and how it is stopped and proved stopped."""

from __future__ import annotations

from stopkit.units.facts import ProcessFacts, UnitReport
from stopkit.units.function import CallableUnit
from stopkit.units.http import Endpoint, HttpUnit
from stopkit.units.output import Chunk, OutputLimits
from stopkit.units.process import ProcessUnit
from stopkit.units.unit import Unit

__all__ = [
    "CallableUnit",
    "Chunk",
    "Endpoint",
    "HttpUnit",
    "OutputLimits",
    "ProcessFacts",
    "ProcessUnit",
    "Unit",
    "UnitReport",
]
