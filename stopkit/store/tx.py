"""An open transaction: Core statements, compiled once, run on the plain driver connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Final, Protocol, TypeAlias, cast

import sqlalchemy as sa
from pydantic import JsonValue

from stopkit.events import EventKind
from stopkit.store import schema
from stopkit.store.codec import dumps

Value: TypeAlias = str | int | float | None
Row: TypeAlias = tuple[Value, ...]
Statement: TypeAlias = sa.ClauseElement


class Cursor(Protocol):
    @property
    def rowcount(self) -> int: ...
    def fetchone(self) -> object: ...
    def fetchall(self) -> Sequence[object]: ...


class Connection(Protocol):
    def execute(self, sql: str, parameters: Mapping[str, Value] = ..., /) -> Cursor: ...


_EVENTS = schema.events
_LAST_SEQ: Final = (
    sa.select(sa.func.coalesce(sa.func.max(_EVENTS.c.seq), 0) + 1)
    .where(_EVENTS.c.run == sa.bindparam("run"))
    .scalar_subquery()
)
_INSERT_EVENT: Final = sa.insert(_EVENTS).values(
    run=sa.bindparam("run"),
    seq=_LAST_SEQ,
    at=sa.bindparam("at"),
    kind=sa.bindparam("kind"),
    data=sa.bindparam("data"),
)


_COMPILED: Final[dict[str, dict[Statement, tuple[str, dict[str, Value]]]]] = {}
"""By dialect; the statements are constants, so this stays small."""


class Tx:
    """Statements of this module's callers are module constants: each is compiled once."""

    def __init__(self, connection: sqlite3.Connection, dialect: sa.Dialect) -> None:
        self._connection = connection
        self._dialect = dialect
        self._compiled = _COMPILED.setdefault(dialect.name, {})

    def execute(self, statement: Statement, parameters: Mapping[str, Value]) -> Cursor:
        compiled = self._compiled.get(statement)
        if compiled is None:
            compiled = self._compiled[statement] = self._compile(statement)
        sql, constants = compiled
        if constants:
            parameters = {**constants, **parameters}
        return self._connection.execute(sql, parameters)

    def rows(self, statement: Statement, parameters: Mapping[str, Value]) -> list[Row]:
        return cast("list[Row]", self.execute(statement, parameters).fetchall())

    def row(self, statement: Statement, parameters: Mapping[str, Value]) -> Row | None:
        return cast("Row | None", self.execute(statement, parameters).fetchone())

    def event(self, run: str, kind: EventKind, at: float, data: Mapping[str, JsonValue]) -> None:
        """Add the run's next event."""
        self.execute(_INSERT_EVENT, {"run": run, "at": at, "kind": kind, "data": dumps(dict(data))})

    def _compile(self, statement: Statement) -> tuple[str, dict[str, Value]]:
        """The text of a statement, and the values that it brings itself."""
        compiled = statement.compile(dialect=self._dialect)
        assert isinstance(compiled, sa.sql.compiler.SQLCompiler)
        constants = {
            name: cast(Value, bind.value)
            for name, bind in compiled.binds.items()
            if not bind.required and bind.value is not None
        }
        return str(compiled), constants
