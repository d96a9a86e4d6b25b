"""What one caller does wrong stays with that caller; what the record says stays true."""

from __future__ import annotations

import threading

import pytest

from stopkit.errors import NotRecorded
from stopkit.store import MemoryStore, SqlStore, ledger
from stopkit.tool import tool


@tool(effect="read")
async def look() -> str:
    return "seen"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs.db"


@pytest.fixture
def store(path):
    store = SqlStore(f"sqlite:///{path}")
    yield store
    store.close()


def _bad_bind(tx):
    ledger.press(tx, object())


def _no_row(tx):
    tx.execute(ledger.q.INSERT_MESSAGE, {"run": "r", "ordinal": 0, "body": None})


class _End(BaseException):
    pass


def _ends(_tx):
    raise _End


@pytest.mark.parametrize("bad", [_bad_bind, _no_row, _ends])
def test_a_refused_statement_fails_its_own_job_only(store, bad):
    gate = threading.Event()
    holding = store.submit(lambda _tx: gate.wait(10))
    # All of these share the transaction after the one that is held.
    futures = [store.submit(job) for job in (lambda _tx: 1, bad, lambda _tx: 3)]
    gate.set()
    assert holding.result(10)
    assert futures[0].result(10) == 1
    assert futures[2].result(10) == 3
    assert isinstance(futures[1].exception(10), (_End, NotRecorded))


@pytest.mark.parametrize("error", [RuntimeError("commit"), _End()])
def test_the_writer_outlives_any_error_of_a_commit(path, error):
    left = [error]

    def fault(point):
        if point == "commit" and left:
            raise left.pop()

    store = SqlStore(f"sqlite:///{path}", fault=fault)
    assert store.submit(lambda _tx: 1).exception(10) is error
    assert store.submit(lambda _tx: 2).result(10) == 2
    store.close()


def test_a_memory_store_tells_every_error_through_the_future():
    store = MemoryStore()
    with pytest.raises(ValueError, match="no"):
        store.submit(lambda _tx: int("no")).result()
    assert isinstance(store.submit(_no_row).exception(), NotRecorded)
    assert store.submit(lambda _tx: 1).result() == 1
    store.close()
