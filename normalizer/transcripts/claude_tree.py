"""The tree in a Claude Code session file: which rows are one message, which are the active branch.

Rows link by `parentUuid`, and the active branch ends at the last row of the file.  A walk from
there is not the history yet: one assistant message is several rows, and the result of each call
hangs off its own call's row, so the walk passes one of them at most.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from stopkit.normalizer.transcripts.rows import Row, as_dict, as_list, as_text

_NODES: Final = frozenset({"user", "assistant", "system", "attachment", "progress"})


def is_node(row: Row) -> bool:
    """True for rows that are part of the tree."""
    return as_text(row.value.get("type")) in _NODES and bool(uuid_of(row))


def uuid_of(row: Row) -> str:
    return as_text(row.value.get("uuid"))


def blocks_of(row: Row, kind: str | None = None) -> list[dict[str, Any]]:
    """The content blocks of a row's message, those of one type if `kind` is given."""
    content = as_list(as_dict(row.value.get("message")).get("content"))
    blocks = (as_dict(block) for block in content)
    return [block for block in blocks if block and (kind is None or block.get("type") == kind)]


def _equal(block: dict[str, Any], other: dict[str, Any]) -> bool:
    try:
        return block == other
    except RecursionError:
        return block is other


@dataclass(slots=True)
class Message:
    """An assistant message: all its rows in the order of the file, and its calls' results."""

    rows: list[Row] = field(default_factory=list[Row])
    results: list[tuple[Row, dict[str, Any]]] = field(
        default_factory=list[tuple[Row, dict[str, Any]]]
    )
    """Each tool_result block that answers one of its calls, with its row."""

    def calls(self) -> list[tuple[Row, dict[str, Any]]]:
        """Its tool_use blocks, a copy of one left out."""
        found: list[tuple[Row, dict[str, Any]]] = []
        same: dict[str, list[dict[str, Any]]] = {}
        for row in self.rows:
            for block in blocks_of(row, "tool_use"):
                others = same.setdefault(as_text(block.get("id")), [])
                if not any(_equal(block, other) for other in others):
                    others.append(block)
                    found.append((row, block))
        return found


class Tree:
    """The rows of one conversation as the tree they are."""

    def __init__(self, rows: list[Row]) -> None:
        self.nodes: dict[str, Row] = {}
        self.messages: dict[str, Message] = {}
        self.owner: dict[str, str] = {}
        """The key in `messages` that an assistant row, or a result's row, belongs to, by uuid."""
        self.gaps: list[Row] = []
        """Rows whose parent no row is: it was lost, and the row before them stands in."""
        for row in rows:
            if is_node(row):
                self.nodes.setdefault(uuid_of(row), row)
        self._order = list(self.nodes)
        self._gather()
        self.branch: list[Row] = self._walk(self._order[-1] if self._order else "")
        """The active branch from its root, or from the boundary of its last compaction."""
        self.boundary: Row | None = None
        self.compacted: frozenset[str] = frozenset()
        """The uuids of rows that a compaction took out of the active branch."""
        if self.branch and self.branch[0].value.get("subtype") == "compact_boundary":
            self.boundary = self.branch[0]
            self._preserve(self.boundary)

    def _gather(self) -> None:
        by_call: dict[str, str] = {}
        asked: dict[str, set[str]] = {}
        for uuid, row in self.nodes.items():
            if row.value["type"] == "assistant":
                key = as_text(as_dict(row.value.get("message")).get("id")) or uuid
                self.messages.setdefault(key, Message()).rows.append(row)
                self.owner[uuid] = key
                for block in blocks_of(row, "tool_use"):
                    by_call[as_text(block.get("id"))] = key
                    asked.setdefault(key, set()).add(as_text(block.get("id")))
                continue
            if row.value["type"] != "user":
                continue
            for block in blocks_of(row, "tool_result"):
                call_id = as_text(block.get("tool_use_id"))
                # The row that asked, where the result names it: ids alone may recur.
                named = (row.value.get("sourceToolAssistantUUID"), row.value.get("parentUuid"))
                owners = [self.owner.get(as_text(name), "") for name in named]
                owner = next(
                    (key for key in owners if call_id in asked.get(key, ())), by_call.get(call_id)
                )
                if owner is not None:
                    self.messages[owner].results.append((row, block))
                    self.owner.setdefault(uuid, owner)

    def _walk(self, tip: str) -> list[Row]:
        place = {uuid: number for number, uuid in enumerate(self._order)}
        path: list[Row] = []
        uuid: str | None = tip or None
        passed: set[str] = set()
        while uuid is not None and uuid not in passed:
            passed.add(uuid)
            row = self.nodes[uuid]
            path.append(row)
            if row.value.get("subtype") == "compact_boundary":
                break
            parent = as_text(row.value.get("parentUuid"))
            if not parent:
                break
            if parent not in self.nodes:
                if place[uuid] == 0:
                    break
                self.gaps.append(row)
                parent = self._order[place[uuid] - 1]
            uuid = parent
        path.reverse()
        return path

    def _preserve(self, boundary: Row) -> None:
        """Put what the compaction kept behind its summary, and note what it took away."""
        metadata = as_dict(boundary.value.get("compactMetadata"))
        preserved = as_dict(metadata.get("preservedMessages"))
        uuids = [as_text(uuid) for uuid in as_list(preserved.get("uuids"))]
        anchor = as_text(preserved.get("anchorUuid"))
        here = next((number for number, row in enumerate(self.branch) if uuid_of(row) == anchor), 0)
        self.branch[here + 1 : here + 1] = [
            self.nodes[uuid] for uuid in uuids if uuid in self.nodes
        ]
        gone: set[str] = set()
        cut = boundary
        while True:
            parent = as_text(cut.value.get("logicalParentUuid"))
            if parent not in self.nodes or parent in gone:
                break
            earlier = self._walk(parent)
            gone.update(uuid_of(row) for row in earlier)
            cut = earlier[0]
        self.compacted = frozenset(gone)
