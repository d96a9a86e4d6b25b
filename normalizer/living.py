"""`Normalizer`: the history of a living agent, repaired as it grows and frozen as it is sent.

What `request` has handed out is never rewritten: prompt caches, and the signed thinking of newer
Claude models, depend on every earlier byte.  News about a call that has been answered otherwise is
told as marked data where it arrives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from stopkit.history import Api
from stopkit.normalizer.engine import Live, Standin, is_news, read_standin
from stopkit.normalizer.errors import HistoryError
from stopkit.normalizer.evidence import Evidences, parsed_evidence, split_occurrence
from stopkit.normalizer.plain import text_in
from stopkit.normalizer.repair import Dialect, dialect
from stopkit.normalizer.result import CallOutcome, Change, Normalized, Splice
from stopkit.normalizer.splices import spliced
from stopkit.normalizer.wording import late_note
from stopkit.normalizer.work import Answered, Context, Repaired, account, with_late_news
from stopkit.outcome import Evidence, Outcome, Placeholder, Running, parse_outcome

_VERSION: Final = 1


class Normalizer:
    """One growing history.

    `extend` takes what was recorded, `resolve` what became known of a call, `request` gives the
    history to send.  Each costs what is new; `request` also copies one pointer an item.

    Not safe for use from several threads at once.
    """

    def __init__(
        self,
        api: Api,
        *,
        request: Mapping[str, object] | None = None,
        live: Live = "close",
    ) -> None:
        """As for `normalize`: `request` is the rest of the request, `live` what becomes of open
        calls of the last turn.

        Raises:
            UnknownApiError: there is no such format.
        """
        self._speaks: Dialect = dialect(api)
        self._api: Api = api
        self._request: Mapping[str, Any] = dict(request or {})
        self._live: Live = live
        self._log_length = 0
        self._sent: list[Any] = []
        self._splices: list[Splice] = []
        self._tail: list[Any] = []
        self._past: dict[str, Answered] = {}
        self._renamed: dict[str, str] = {}
        """The recorded id of each call that was sent under another."""
        self._evidence: dict[str, Evidence] = {}
        self._memory: Any = None
        self._deferred: list[Any] = []
        self._news: dict[tuple[str, int], Outcome] = {}
        self._told: dict[tuple[str, int], Outcome] = {}

    @property
    def api(self) -> Api:
        return self._api

    def __len__(self) -> int:
        """How many items were handed in."""
        return self._log_length + len(self._tail)

    def extend(self, items: Iterable[object]) -> None:
        """Append recorded messages or items.

        Raises:
            HistoryError: one of them is no item of this format; nothing was appended.  The path
                counts from the first of `items`.
        """
        new: list[Any] = list(items)
        found = self._speaks.scan(new, self._request, follows=True)
        if found.spans:
            self._speaks.repair(new, found, self._context())
        self._tail += new

    def resolve(self, call_id: str, evidence: Evidence | Mapping[str, object]) -> None:
        """Say what became of a call; `call_id#2` is the second call with that id.

        A call that has not been sent yet gets its result from it.  For one that was sent with a
        placeholder, the news goes into the next request as marked data, once.

        Raises:
            EvidenceError: `evidence` is none.
        """
        known = parsed_evidence(call_id, evidence)
        name, occurrence = split_occurrence(call_id)
        answered = self._past.get(name)
        if answered is None or occurrence > answered.occurrence:
            self._evidence[call_id] = known
            return
        occurrence = occurrence or answered.occurrence
        if isinstance(known, (Running, Placeholder)) or occurrence != answered.occurrence:
            return
        self._evidence[call_id] = known
        said = self._told.get((name, occurrence), answered.standin)
        if said is not None and is_news(said, known):
            self._news[name, occurrence] = known

    def request(self) -> Normalized[object]:
        """The history as the next request may carry it, with the account of what is new in it.

        Where it is sendable, it is frozen: later requests begin with these very items.  Where it is
        not (a call is at work, the end is the model's), nothing is frozen.  `changes` and
        `outcomes` speak of what came since the last frozen request; paths count over the whole log.

        Raises:
            HistoryError: two parts, each fine, do not make a history; the path names the place.
        """
        tail = list(self._tail)
        recorded = len(tail)
        held = self._deferred
        if held and any(self._speaks.is_models(item) for item in tail):
            tail.append(self._speaks.user_message(held))
            held = []
        # Behind a turn of the model there is no place for it: it waits.
        news = {} if tail and self._speaks.is_models(tail[-1]) else dict(self._news)
        tail += [
            self._speaks.user_message(
                late_note(self._past[name].sent_as or name, number, known.output, known)
            )
            for (name, number), known in news.items()
        ]
        context = self._context()
        repaired = self._repaired(tail, context)
        new = spliced(tail, repaired.splices)
        history = self._sent + new
        may_end, hints = self._speaks.end(history, self._request)
        splices = [*self._splices, *self._splices_of(tail, recorded, repaired, new)]
        hints += repaired.hints
        hints += self._speaks.hints(history, splices[len(self._splices) :], context)
        offset = self._log_length
        api, speaks = self._api, self._speaks
        before: dict[str, Answered] = {}

        def changes() -> list[Change]:
            moved = [
                (kind, rule, (cast("int", where[0]) + offset, *where[1:]), *rest)
                for kind, rule, where, *rest in repaired.changes
            ]
            return account(api, cast("Any", moved), splices)

        def outcomes() -> list[CallOutcome]:
            return with_late_news(
                speaks.outcomes(tail, repaired, replace(context, past=before)),
                tail,
                context.evidences,
            )

        sendable = may_end and not repaired.pending and not repaired.blocked
        result: Normalized[object] = Normalized(
            api=api,
            history=history,
            pending=tuple(repaired.pending),
            sendable=sendable,
            hints=tuple(hints),
            splices=tuple(splices),
            _changes=changes,
            _outcomes=outcomes,
        )
        for call_id, _ in speaks.answered(new):
            call_id = self._renamed.get(call_id) or call_id
            if call_id in self._past:
                before[call_id] = self._past[call_id]
        if sendable:
            self._renamed.update(
                (call.id, call.recorded_id)
                for call, _ in repaired.decisions.values()
                if call.id != call.recorded_id
            )
            self._told.update(news)
            self._news = {key: known for key, known in self._news.items() if key not in news}
            self._freeze(recorded, new, splices, [*held, *repaired.deferred])
        return result

    def _repaired(self, items: list[Any], context: Context) -> Repaired:
        speaks = self._speaks
        if items and speaks.must_look(self._memory, items):
            found = speaks.everything(items)
        else:
            known = context.evidences.ids
            found = speaks.scan(items, self._request, known, follows=context.follows)
        return speaks.repair(items, found, context) if found.spans else Repaired()

    def _context(self) -> Context:
        return Context(
            api=self._api,
            request=self._request,
            evidences=Evidences(self._evidence),
            live=self._live,
            past=self._past,
            follows=bool(self._sent),
            memory=self._memory,
        )

    def _splices_of(
        self, tail: list[Any], recorded: int, repaired: Repaired, new: list[Any]
    ) -> list[Splice]:
        """The repair of the tail over the whole log; behind `recorded` items it is our own."""
        at = len(self._sent)
        if len(tail) > recorded:
            return [Splice(self._log_length, tuple(tail[:recorded]), at, tuple(new))]
        return [
            Splice(s.start + self._log_length, s.before, s.start_after + at, s.after)
            for s in repaired.splices
        ]

    def _freeze(
        self, recorded: int, new: list[Any], splices: list[Splice], deferred: list[Any]
    ) -> None:
        self._take_in(new)
        self._sent += new
        self._splices = splices
        self._log_length += recorded
        self._tail = []
        self._deferred = list(deferred)

    def _take_in(self, new: list[Any]) -> None:
        """Know the calls of a frozen part, and what else its format asks of later ones."""
        for sent_as, content in self._speaks.answered(new):
            call_id: str = self._renamed.get(sent_as) or sent_as
            known = self._past.get(call_id)
            occurrence = known.occurrence + 1 if known else 1
            self._past[call_id] = Answered(occurrence, content, _standin_of(content), sent_as)
        self._memory = self._speaks.remember(self._memory, new)

    def dump(self) -> dict[str, object]:
        """The repair record of what was sent, as JSON: store it beside the append-only log.

        It holds what differs from the log, not the log itself; what came since the last frozen
        request is not in it, and is handed to `extend` again.
        """
        return {
            "version": _VERSION,
            "api": self._api,
            "log_length": self._log_length,
            "request": dict(self._request),
            "live": self._live,
            "splices": [
                {
                    "start": splice.start,
                    "count": len(splice.before),
                    "after": list(splice.after),
                }
                for splice in self._splices
            ],
            "deferred": list(self._deferred),
            "renamed": dict(self._renamed),
            "evidence": {call_id: _dumped(known) for call_id, known in self._evidence.items()},
            "told": [
                [name, number, _dumped(known)] for (name, number), known in self._told.items()
            ],
        }

    @classmethod
    def load(cls, record: Mapping[str, object], log: Sequence[object]) -> Normalizer:
        """A `Normalizer` as it was at `dump`, from its record and the log it was dumped beside.

        Items of the log behind the recorded part are taken in as by `extend`.

        Raises:
            HistoryError: the record is none of ours, or the log is shorter than it says.
        """
        try:
            made, length = cls._from_record(cast("dict[str, Any]", dict(record)), log)
        except HistoryError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise HistoryError(f"not a repair record: {error!r}", path="record") from None
        made.extend(log[length:])
        return made

    @classmethod
    def _from_record(cls, data: dict[str, Any], log: Sequence[object]) -> tuple[Normalizer, int]:
        if data["version"] != _VERSION:
            raise HistoryError(f"unknown version {data['version']!r}", path="record.version")
        made = cls(data["api"], request=data["request"], live=data["live"])
        length = int(data["log_length"])
        if not 0 <= length <= len(log):
            raise HistoryError(
                f"the log has {len(log)} items, the record speaks of {length}",
                path="record.log_length",
            )
        offset = 0
        for row in data["splices"]:
            start, count, after = int(row["start"]), int(row["count"]), tuple(row["after"])
            before = tuple(log[start : start + count])
            made._splices.append(Splice(start, before, start + offset, after))
            offset += len(after) - count
        made._sent = list(spliced(list(log[:length]), made._splices))
        made._log_length = length
        made._deferred = list(data["deferred"])
        made._renamed = {str(new): str(old) for new, old in data["renamed"].items()}
        for name, number, known in data["told"]:
            made._told[str(name), int(number)] = parse_outcome(known)
        made._take_in(made._sent)
        for call_id, known in data["evidence"].items():
            made.resolve(call_id, known)
        return made, length


def _dumped(known: Evidence) -> dict[str, object]:
    return {"status": known.status, **known.model_dump(mode="json", exclude_defaults=True)}


def _standin_of(content: object) -> Standin | None:
    """What a result, in the dialect's comparable form, says of itself."""
    match content:
        case (inner, bool() as is_error):
            return read_standin(text_in(inner), is_error)
        case _:
            return read_standin(text_in(content), None)
