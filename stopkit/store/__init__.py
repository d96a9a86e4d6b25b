"""The durable record: runs, operations, steers, messages and events in one database."""

from __future__ import annotations

from stopkit.store.sql import MemoryStore, SqlStore

__all__ = ["MemoryStore", "SqlStore"]
