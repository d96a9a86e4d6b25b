"""The tables, and how an older file becomes a newer one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import sqlalchemy as sa

from stopkit.errors import SchemaMismatch

metadata: Final = sa.MetaData()

meta: Final = sa.Table(
    "stopkit_meta",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)

runs: Final = sa.Table(
    "runs",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("session", sa.Text, nullable=False),
    sa.Column("tenant", sa.Text),
    sa.Column("lineage", sa.Text, nullable=False, index=True),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("resumed_from", sa.Text),
    sa.Column("parent", sa.Text),
    sa.Column("status", sa.Text, nullable=False, index=True),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("requests", sa.Integer, nullable=False),
    sa.Column("opened_at", sa.Float, nullable=False),
    sa.Column("deadline_at", sa.Float),
    sa.Column("cause_kind", sa.Text),
    sa.Column("cause_at", sa.Float),
    sa.Column("cause_actor", sa.Text),
    sa.Column("cause_words", sa.Text),
    sa.Column("presses", sa.Integer, nullable=False),
    sa.Column("cancel_requested_at", sa.Float),
    sa.Column("terminal_at", sa.Float),
    sa.Column("end", sa.Text),
    sa.Column("failure", sa.Text),
    sa.Column("active_call", sa.Text),
    # Two resumes of one run would both go on with its work.
    sa.UniqueConstraint("lineage", "attempt"),
)

operations: Final = sa.Table(
    "operations",
    metadata,
    sa.Column("run", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True, index=True),
    sa.Column("request", sa.Integer, nullable=False),
    sa.Column("call_id", sa.Text, nullable=False),
    sa.Column("occurrence", sa.Integer, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("arguments", sa.Text, nullable=False),
    sa.Column("fingerprint", sa.Text, nullable=False),
    sa.Column("effect", sa.Text, nullable=False),
    sa.Column("stage", sa.Text, nullable=False),
    sa.Column("intended_at", sa.Float),
    sa.Column("dispatched_at", sa.Float),
    sa.Column("first_dispatched_at", sa.Float),
    sa.Column("settled_at", sa.Float),
    sa.Column("outcome", sa.Text),
    sa.Column("receipts", sa.Text, nullable=False),
    sa.Column("provider_request_id", sa.Text),
    sa.Column("decided_by", sa.Text),
    sqlite_with_rowid=False,
)

steers: Final = sa.Table(
    "steers",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("run", sa.Text, nullable=False, index=True),
    sa.Column("ordinal", sa.Integer, nullable=False),
    sa.Column("content", sa.Text, nullable=False),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("proof", sa.Text),
)

units: Final = sa.Table(
    "units",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("run", sa.Text, nullable=False, index=True),
    sa.Column("key", sa.Text),
    sa.Column("facts", sa.Text, nullable=False),
)

messages: Final = sa.Table(
    "messages",
    metadata,
    sa.Column("run", sa.Text, primary_key=True),
    sa.Column("ordinal", sa.Integer, primary_key=True),
    sa.Column("body", sa.Text, nullable=False),
    sqlite_with_rowid=False,
)

repairs: Final = sa.Table(
    "repairs",
    metadata,
    sa.Column("run", sa.Text, primary_key=True),
    sa.Column("ordinal", sa.Integer, primary_key=True),
    sa.Column("body", sa.Text, nullable=False),
    sqlite_with_rowid=False,
)

events: Final = sa.Table(
    "events",
    metadata,
    sa.Column("run", sa.Text, primary_key=True),
    sa.Column("seq", sa.Integer, primary_key=True),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("data", sa.Text, nullable=False),
    sqlite_with_rowid=False,
)

Migration: TypeAlias = Callable[[sa.Connection], None]

MIGRATIONS: Final[tuple[Migration, ...]] = (metadata.create_all,)
"""The first makes the tables of version 1; each later one brings the version before it on by one.

Once released, a migration is never edited: a file may stand anywhere between them.
"""


def migrate(connection: sa.Connection, migrations: Sequence[Migration] = MIGRATIONS) -> int:
    """Bring the database to the newest version, within the caller's transaction; returns it.

    Raises:
        SchemaMismatch: if a newer stopkit made this database.
    """
    version = 0
    if sa.inspect(connection).has_table(meta.name):
        found = connection.scalar(sa.select(meta.c.value).where(meta.c.name == "schema_version"))
        version = int(found or 0)
    if version > len(migrations):
        raise SchemaMismatch(
            f"this store has schema version {version}; this stopkit knows {len(migrations)}"
        )
    for migration in migrations[version:]:
        migration(connection)
    if version != len(migrations):
        connection.execute(sa.delete(meta).where(meta.c.name == "schema_version"))
        connection.execute(
            sa.insert(meta).values(name="schema_version", value=str(len(migrations)))
        )
    return len(migrations)
