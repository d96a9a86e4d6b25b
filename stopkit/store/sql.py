"""The stores: what a run, another process or a person asks of the record."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import sqlalchemy as sa
from pydantic import JsonValue
from sqlalchemy.exc import OperationalError

from stopkit.clock import SYSTEM_CLOCK, Clock, Ids, random_id
from stopkit.errors import NotRecorded, StoreClosed, StoreError
from stopkit.events import Event
from stopkit.history import ToolCall
from stopkit.operation import Decision, Operation, outcomes_by_call_id, resettle_by_person
from stopkit.outcome import NotStarted, Outcome, Unknown
from stopkit.pauses import PauseHook
from stopkit.run import ENDED, RunRecord
from stopkit.stop import Cause, CauseKind, StopPolicy
from stopkit.store import ledger
from stopkit.store.ledger import StopReceipt
from stopkit.store.sqlite import (
    BUSY_TIMEOUT,
    Fault,
    SqliteDriver,
    Synchronous,
    make_engine,
    migrate,
    no_fault,
)
from stopkit.store.tx import Tx
from stopkit.store.writer import Writer, not_recorded

if TYPE_CHECKING:
    from stopkit.reconcile import Compensation, Reconciliation
    from stopkit.scope import RunScope
    from stopkit.tool import Tools
    from stopkit.work import Complete

T = TypeVar("T")

Policy: TypeAlias = Callable[[RunRecord], Awaitable[None] | None]
"""Asked before each attempt, resumed ones included; it refuses by raising."""

Listener: TypeAlias = Callable[[Cause, int | None], None]
"""Told, in any thread, that a run of this process is being stopped: the cause, and how many
requests the record counts (None where the request could not be recorded)."""

PATIENCE: Final = 5.0
"""Seconds that a write waits for a locked store, unless a stop gives it less."""

FOLLOW_INTERVAL: Final = 0.05
"""Seconds between two looks for new events."""

_OPEN_WAIT: Final = 5.0


class Store(ABC):
    """What all stores share.  `durable` says whether a record outlives the process.

    Closing a store stops nothing: the runs in it stay as their records say.
    """

    durable: bool

    def __init__(
        self,
        *,
        clock: Clock = SYSTEM_CLOCK,
        ids: Ids = random_id,
        policy: Policy | None = None,
        pause: PauseHook | None = None,
    ) -> None:
        self.clock = clock
        self.ids = ids
        self.pause = pause
        self._policy = policy
        self._listeners: dict[str, Listener] = {}

    @abstractmethod
    def submit(self, apply: Callable[[Tx], T], *, patience: float = PATIENCE) -> Future[T]:
        """Run `apply` in a transaction; the future is set after its commit.

        It fails with `NotRecorded` where that could not be done within `patience` seconds.
        """

    @abstractmethod
    async def read(self, look: Callable[[Tx], T]) -> T:
        """Run `look` on committed data."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the store, after what was submitted is written.  Twice is once."""

    async def open_run(
        self,
        *,
        session: str,
        tenant: str | None = None,
        deadline: float | None = None,
        stop: StopPolicy | None = None,
        parent: RunScope | None = None,
        complete: Complete | None = None,
    ) -> RunScope:
        """A new run, recorded as queued; it is running inside `async with`.

        `deadline` is in seconds from now, and never longer than what the parent has left.  A stop
        of the parent stops this run too, with cause `parent`.

        Raises:
            NotRecorded: if the record could not be written.
            Exception: what the store's policy refuses with.
        """
        from stopkit.scope import RunScope

        run = self.ids("run")
        if parent is not None:
            left = parent.signal.remaining()
            deadline = left if deadline is None else min(deadline, left)
            if deadline == float("inf"):
                deadline = None
        now = self.clock.wall()
        record = RunRecord(
            id=run,
            session=session,
            tenant=tenant,
            lineage=run,
            attempt=1,
            resumed_from=None,
            parent=parent.id if parent else None,
            status="queued",
            version=1,
            requests=0,
            opened_at=now,
            deadline_at=None if deadline is None else now + deadline,
        )
        await self._ask_policy(record)
        await self.write(partial(ledger.insert_run, record=record, at=now))
        return RunScope(
            self, record, deadline=deadline, policy=stop, parent=parent, complete=complete
        )

    async def resume_run(
        self,
        run: str,
        *,
        deadline: float | None = None,
        stop: StopPolicy | None = None,
        complete: Complete | None = None,
    ) -> RunScope:
        """The next attempt of a run that has ended.  `scope.messages` is where it starts from.

        Raises:
            ReconcileRequired: while an effect of the old attempt is unverified.
            RunConflict: if the run is at work, or was resumed already.
            NotRecorded: if the record could not be written.
            Exception: what the store's policy refuses with.
        """
        from stopkit.scope import RunScope

        old = await self.load(run)
        now = self.clock.wall()
        record = replace(
            old,
            id=self.ids("run"),
            attempt=old.attempt + 1,
            resumed_from=old.id,
            status="queued",
            version=1,
            opened_at=now,
            deadline_at=None if deadline is None else now + deadline,
            cause=None,
            presses=0,
            cancel_requested_at=None,
            terminal_at=None,
            end=None,
            failure=None,
            active_call=None,
        )
        await self._ask_policy(record)
        await self.write(partial(ledger.resume_run, old=old.id, new=record, at=now))
        messages = await self.messages(record.id)
        lineage = await self.read(partial(ledger.operations_of_lineage, lineage=record.lineage))
        return RunScope(
            self,
            record,
            deadline=deadline,
            policy=stop,
            parent=None,
            complete=complete,
            messages=messages,
            inherited=lineage,
            steers=await self.read(partial(ledger.steers_of, run=record.id)),
        )

    async def request_stop(
        self,
        run: str,
        cause: Cause | CauseKind = "user",
        *,
        actor: str | None = None,
        words: str | None = None,
        patience: float = PATIENCE,
    ) -> StopReceipt:
        """Ask that a run stop, in whatever process it is at work.

        The first request is recorded with its event; a repeat presses once more and changes
        nothing; a run that has ended stays as it is.

        Raises:
            RunNotFound: if there is no such run.

        Cancellation: the request stands.
        """
        if not isinstance(cause, Cause):
            cause = Cause(cause, self.clock.wall(), actor, words)
        at = self.clock.wall()
        future = self.submit(
            partial(ledger.request_stop, run=run, cause=cause, at=at), patience=patience
        )
        try:
            receipt = await asyncio.shield(asyncio.wrap_future(future))
        except (NotRecorded, StoreClosed) as error:
            receipt = StopReceipt(run, cause=cause, recorded=False, error=str(error))
        # A store that is locked keeps no run of this process at work.
        if (listener := self._listeners.get(run)) is not None and receipt.cause is not None:
            listener(receipt.cause, receipt.presses if receipt.recorded else None)
        return receipt

    async def load(self, run: str) -> RunRecord:
        """The record of a run.

        Raises:
            RunNotFound: if there is none.
        """
        return await self.read(partial(ledger.load_run, run=run))

    async def runs(self, session: str) -> tuple[RunRecord, ...]:
        """The runs of a session, in the order of their opening."""
        return await self.read(partial(ledger.runs_of_session, session=session))

    async def events(self, run: str, *, after: int = 0) -> tuple[Event, ...]:
        """A run's events with a number above `after`, in order and without a gap."""
        return await self.read(partial(ledger.events_of, run=run, after=after))

    async def follow(self, run: str, *, after: int = 0) -> AsyncIterator[Event]:
        """A run's events above `after`, as they come, until the run has its end.

        To leave it is to look away, and no stop.  Going on later from the last number seen misses
        nothing.

        Raises:
            RunNotFound: if there is no such run.
        """
        while True:
            # In this order: what is written before the end is read after it.
            ended = (await self.load(run)).status in ENDED
            for event in await self.events(run, after=after):
                after = event.seq
                yield event
            if ended:
                return
            await asyncio.sleep(FOLLOW_INTERVAL)

    async def operations(self, run: str) -> tuple[Operation, ...]:
        return await self.read(partial(ledger.operations_of, run=run))

    async def pending(self, run: str) -> tuple[Operation, ...]:
        """The operations of a run whose effects nobody knows."""
        return await self.read(partial(ledger.pending_of, run=run))

    async def messages(self, run: str) -> tuple[JsonValue, ...]:
        return await self.read(partial(ledger.messages_of, run=run))

    async def repairs(self, run: str) -> tuple[JsonValue, ...]:
        return await self.read(partial(ledger.repairs_of, run=run))

    async def evidence(self, run: str, calls: Sequence[ToolCall]) -> Mapping[str, Outcome]:
        """What the ledger knows of the calls of a history; ids that recur are written `id#n`.

        All attempts of the run count: the history of a resumed one begins with theirs.  A call
        without a row never started: the row is written first.  Where an id recurs more often than
        the ledger has it, nobody can tell which call is which, and they are unknown.
        """
        record = await self.load(run)
        rows = await self.read(partial(ledger.operations_of_lineage, lineage=record.lineage))
        recorded = outcomes_by_call_id(rows)
        most: dict[str, int] = {}
        for call in calls:
            most[call.id] = max(call.occurrence, most.get(call.id, 0))
        found: dict[str, Outcome] = {}
        for call in calls:
            outcomes = recorded.get(call.id, [])
            outcome: Outcome | None
            if not outcomes:
                outcome = NotStarted(
                    reason="it never started",
                    evidence=("the ledger has no row for it, and one is written before a start",),
                )
            elif most[call.id] > len(outcomes):
                outcome = Unknown(
                    reason="its id recurs, and the ledger does not tell these calls apart",
                    evidence=(f"the ledger has {len(outcomes)} of {most[call.id]} such calls",),
                )
            else:
                outcome = outcomes[call.occurrence - 1]
            if outcome is not None:
                name = call.id if call.occurrence == 1 else f"{call.id}#{call.occurrence}"
                found[name] = outcome
        return found

    async def take_over(self, run: str) -> RunRecord:
        """Account for a run whose worker is known to be gone, and end it.

        A recorded request to stop is honoured.  Nothing is run.  The caller vouches that no worker
        is left; a run that has ended stays as it is.
        """
        return await self.write(partial(ledger.take_over, run=run, at=self.clock.wall()))

    async def reconcile(self, run: str, tools: Tools, *, within: float = 10.0) -> Reconciliation:
        """Ask the tools' own `status` about every operation that nobody verified.

        `within` bounds each question, in seconds.  The run gets its end once nothing is left.

        Raises:
            RunConflict: while the run is at work.
        """
        from stopkit.reconcile import reconcile

        return await reconcile(self, run, tools, within=within)

    async def decide(
        self, run: str, key: str, decision: Decision, *, by: str, words: str = ""
    ) -> Operation:
        """A named person's word on an operation that nobody could verify.

        Raises:
            DecisionRefused: if its effects are known, or `by` is empty.
            RunConflict: while the run is at work.
        """
        at = self.clock.wall()

        def apply(tx: Tx) -> Operation:
            operation = ledger.get_operation(tx, run, key)
            outcome = resettle_by_person(operation, decision, by=by, words=words)
            settled = ledger.resettle(
                tx, run, key, outcome, at, by="a person", decided_by=by.strip()
            )
            ledger.close_if_reconciled(tx, run, at)
            # What is known already was refused above, in this transaction.
            assert settled is not None
            return settled

        return await self.write(apply)

    async def compensate(
        self, run: str, key: str, tools: Tools, *, by: str, within: float = 30.0
    ) -> Compensation:
        """Undo one operation by its tool's `compensate`, if it has one.

        The answer says what is known: done, not possible, failed or unknown.  Asking again gives
        the recorded answer.
        """
        from stopkit.reconcile import compensate

        return await compensate(self, run, key, tools, by=by, within=within)

    async def write(self, apply: Callable[[Tx], T], *, patience: float = PATIENCE) -> T:
        """`submit`, awaited.

        Cancellation: takes the change back if its transaction has not begun.
        """
        return await asyncio.wrap_future(self.submit(apply, patience=patience))

    def listen(self, run: str, listener: Listener) -> None:
        self._listeners[run] = listener

    def unlisten(self, run: str) -> None:
        self._listeners.pop(run, None)

    async def _ask_policy(self, record: RunRecord) -> None:
        if self._policy is not None:
            answer = self._policy(record)
            if answer is not None:
                await answer


class SqlStore(Store):
    """A store in an SQLite file (`sqlite:///path`), in WAL mode, for any number of processes.

    `synchronous`: `FULL` survives a loss of power, `NORMAL` may then lose the last commits, never
    the file.

    Raises:
        SchemaMismatch: if a newer stopkit made the file.
        StoreError: for any other database.
        NotRecorded: if it cannot be opened.
    """

    durable = True

    def __init__(
        self,
        url: str,
        *,
        synchronous: Synchronous = "FULL",
        clock: Clock = SYSTEM_CLOCK,
        ids: Ids = random_id,
        policy: Policy | None = None,
        pause: PauseHook | None = None,
        fault: Fault = no_fault,
    ) -> None:
        super().__init__(clock=clock, ids=ids, policy=policy, pause=pause)
        parsed = sa.make_url(url)
        if parsed.get_backend_name() != "sqlite" or parsed.database in (None, "", ":memory:"):
            raise StoreError(f"SqlStore needs a URL like sqlite:///runs.db, not {url!r}")
        self._engine = make_engine(parsed, synchronous)
        self._fault = fault
        _patiently(lambda: migrate(self._engine))
        self._reader = SqliteDriver(self._engine)
        self._read_lock = threading.Lock()
        self._closed = False
        self._writer = Writer(self._connect, self._notice)

    def submit(self, apply: Callable[[Tx], T], *, patience: float = PATIENCE) -> Future[T]:
        return self._writer.submit(apply, patience=patience)

    async def read(self, look: Callable[[Tx], T]) -> T:
        return await asyncio.to_thread(self._read, look)

    def close(self) -> None:
        self._writer.close()
        with self._read_lock:
            if not self._closed:
                self._closed = True
                self._reader.close()
                self._engine.dispose()

    def _connect(self) -> SqliteDriver:
        return SqliteDriver(self._engine, self._fault)

    def _read(self, look: Callable[[Tx], T]) -> T:
        with self._read_lock:
            if self._closed:
                raise StoreClosed("the store was closed")
            try:
                return look(self._reader.read())
            except sqlite3.Error as error:
                raise StoreError(f"the store cannot be read: {error}") from error

    def _notice(self, tx: Tx) -> None:
        if not self._listeners:
            return
        for record in ledger.runs_being_stopped(tx):
            listener = self._listeners.get(record.id)
            if listener is not None and record.cause is not None:
                listener(record.cause, record.presses)


class MemoryStore(Store):
    """The same record in this process's memory: not durable, gone with it."""

    durable = False

    def __init__(
        self,
        *,
        clock: Clock = SYSTEM_CLOCK,
        ids: Ids = random_id,
        policy: Policy | None = None,
        pause: PauseHook | None = None,
        fault: Fault = no_fault,
    ) -> None:
        super().__init__(clock=clock, ids=ids, policy=policy, pause=pause)
        self._engine = make_engine(sa.make_url("sqlite://"), "NORMAL")
        migrate(self._engine)
        self._driver = SqliteDriver(self._engine, fault)
        self._lock = threading.RLock()
        self._closed = False

    def submit(self, apply: Callable[[Tx], T], *, patience: float = PATIENCE) -> Future[T]:
        future: Future[T] = Future()
        try:
            result = self._apply(apply)
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(result)
        return future

    async def read(self, look: Callable[[Tx], T]) -> T:
        with self._lock:
            if self._closed:
                raise StoreClosed("the store was closed")
            return look(self._driver.read())

    async def write(self, apply: Callable[[Tx], T], *, patience: float = PATIENCE) -> T:
        return self._apply(apply)

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                self._driver.close()
                self._engine.dispose()

    def _apply(self, apply: Callable[[Tx], T]) -> T:
        with self._lock:
            if self._closed:
                raise StoreClosed("the store was closed")
            try:
                tx = self._driver.begin()
                result = apply(tx)
                self._driver.commit()
            except sqlite3.Error as error:
                self._driver.rollback()
                raise not_recorded(error) from error
            except BaseException:
                self._driver.rollback()
                raise
            return result


def _patiently(open_: Callable[[], None]) -> None:
    """Open a file that other processes may be opening at the same time."""
    until = time.monotonic() + _OPEN_WAIT
    while True:
        try:
            open_()
        except (OperationalError, sqlite3.OperationalError) as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise NotRecorded(f"the store cannot be opened: {error}") from error
            time.sleep(BUSY_TIMEOUT)
        else:
            return
