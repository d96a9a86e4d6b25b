"""SQLite as a driver of transactions."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable
from typing import Final, Literal, TypeAlias, cast

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite as sa_sqlite
from sqlalchemy.event import listen
from sqlalchemy.pool import ConnectionPoolEntry, NullPool, StaticPool

from stopkit.store import schema
from stopkit.store.tx import Tx

Synchronous: TypeAlias = Literal["FULL", "NORMAL"]
FaultPoint: TypeAlias = Literal["begin", "commit"]
Fault: TypeAlias = Callable[[FaultPoint], None]

BUSY_TIMEOUT: Final = 0.05
"""Seconds that one attempt waits for the lock; the writer asks again while it has patience."""

_DIALECT: Final = sa_sqlite.dialect(paramstyle="named")


def no_fault(_point: FaultPoint) -> None:
    """The fault that never happens."""


def make_engine(url: sa.URL, synchronous: Synchronous) -> sa.Engine:
    memory = url.database in (None, "", ":memory:")
    engine = sa.create_engine(
        url,
        poolclass=StaticPool if memory else NullPool,
        connect_args={"check_same_thread": False, "timeout": BUSY_TIMEOUT},
    )

    def configure(connection: sqlite3.Connection, _entry: ConnectionPoolEntry) -> None:
        # Transactions begin where this package says so, not where sqlite3 guesses.
        connection.isolation_level = None
        if not memory:
            connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {synchronous}")

    listen(engine, "connect", configure)
    return engine


class SqliteDriver:
    """One connection, one open transaction at a time."""

    def __init__(self, engine: sa.Engine, fault: Fault = no_fault) -> None:
        self._fault = fault
        self._path = engine.url.database if engine.pool.__class__ is NullPool else None
        self._pooled = engine.raw_connection()
        self._connection = cast(sqlite3.Connection, self._pooled.driver_connection)
        self._tx = Tx(self._connection, _DIALECT)
        self._identity = self._look()
        self._seen = self._data_version()

    def begin(self) -> Tx:
        self._fault("begin")
        # An open file that was removed goes on taking commits, which nobody will ever read.
        if self._identity is not None and self._look() != self._identity:
            raise sqlite3.OperationalError("the store's file was removed or replaced")
        if self._connection.in_transaction:
            # One that could not be rolled back in its time.
            self._connection.execute("ROLLBACK")
        self._connection.execute("BEGIN IMMEDIATE")
        return self._tx

    def read(self) -> Tx:
        return self._tx

    def commit(self) -> None:
        self._fault("commit")
        self._connection.execute("COMMIT")

    def rollback(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("ROLLBACK")

    def changed_by_others(self) -> bool:
        """True after another connection has committed, once for all commits until now."""
        now = self._data_version()
        changed, self._seen = now != self._seen, now
        return changed

    def close(self) -> None:
        self._pooled.close()

    def _data_version(self) -> int:
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def _look(self) -> tuple[int, int] | None:
        if self._path is None:
            return None
        try:
            found = os.stat(self._path)
        except OSError:
            return (0, 0)
        return (found.st_dev, found.st_ino)


def migrate(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        try:
            schema.migrate(connection)
        except BaseException:
            connection.exec_driver_sql("ROLLBACK")
            raise
        connection.exec_driver_sql("COMMIT")
