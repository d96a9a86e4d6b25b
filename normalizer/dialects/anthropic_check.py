"""`violations`: what the Messages API would refuse, exactly, rule by rule.

The history is read as runs of neighbours with one role: the API folds them (ANT-ROLE-2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from stopkit.normalizer.dialects.anthropic_blocks import (
    CLIENT_ID,
    MAX_MARKERS,
    MAX_MESSAGES,
    NAME,
    RESPONSE_FIELDS,
    RESULT_CONTENT,
    ROLES,
    SERVER_CALLS,
    SERVER_ID,
    SYSTEM_CONTENT,
    THINKING,
    blank,
    client_id,
    is_hosted_result,
    marked,
    markers_in_request,
    models_only,
    no_result_content,
    programmatic,
    signed,
    tool_names,
)
from stopkit.normalizer.dialects.anthropic_server import gaps
from stopkit.normalizer.models import refuses_prefill, takes_system_messages
from stopkit.normalizer.plain import path_of
from stopkit.normalizer.result import Location, Violation
from stopkit.normalizer.rules import RULES

Item = dict[str, Any]
Cell = tuple[Item, Location]


class _Message:
    __slots__ = ("cells", "index", "item", "role", "string")

    def __init__(self, item: Item, index: int, role: str) -> None:
        self.item = item
        self.index = index
        self.role = role
        self.cells: list[Cell] = []
        self.string = False


class _Run:
    """Neighbours of one role, and what a reader of the run needs of it."""

    __slots__ = ("messages", "role")

    def __init__(self, role: str) -> None:
        self.role = role
        self.messages: list[_Message] = []

    def cells(self) -> Iterator[Cell]:
        for message in self.messages:
            yield from message.cells


def violations(items: Sequence[Any], request: Mapping[str, Any]) -> list[Violation]:
    """All violations of a plain history, in the order of the history."""
    checker = _Checker(request)
    checker.read(items)
    checker.check_pairs()
    checker.check_server_tools()
    checker.check_system()
    checker.check_ends(items)
    checker.check_markers()
    return checker.sorted()


def _order(location: Location) -> tuple[tuple[int, int | str], ...]:
    return tuple((0, part) if isinstance(part, int) else (1, part) for part in location)


class _Checker:
    def __init__(self, request: Mapping[str, Any]) -> None:
        self.request = request
        self.tools = tool_names(request)
        self.runs: list[_Run] = []
        self.messages: list[_Message] = []
        self.markers: list[Location] = []
        self.found: list[tuple[Location, Violation]] = []
        self.system_told: set[Location] = set()

    def say(
        self,
        rule: str,
        location: Location,
        message: str = "",
        scope: Literal["prefix", "send"] | None = None,
        **words: object,
    ) -> None:
        row = RULES[rule]
        if not message:
            message = row.error or row.says
            for key, value in words.items():
                message = message.replace(f"{{{key}}}", str(value)[:100])
        default: Literal["prefix", "send"] = "send" if row.scope == "send" else "prefix"
        path = path_of("anthropic.messages", location)
        if rule == "ANT-SYS-1":
            # Placement and content are one rule: it is told once a message.
            if location in self.system_told:
                return
            self.system_told.add(location)
        self.found.append((location, Violation(rule, path, message, row.grade, scope or default)))

    def sorted(self) -> list[Violation]:
        ranks = {rule: rank for rank, rule in enumerate(RULES)}
        self.found.sort(key=lambda pair: (_order(pair[0]), ranks[pair[1].rule]))
        return [violation for _, violation in self.found]

    # -- each message for itself -----------------------------------------------------------

    def read(self, items: Sequence[Any]) -> None:
        for index, item in enumerate(items):
            role = item.get("role") if isinstance(item, dict) else None
            if not isinstance(item, dict):
                self.say("GEN-SHAPE-1", (index,), "a message is an object")
                role = "?"
            elif not isinstance(role, str) or role not in ROLES:
                self.say("GEN-SHAPE-1", (index,), "role: Input should be 'user' or 'assistant'")
                role = "?"
            message = _Message(item if isinstance(item, dict) else {}, index, role)
            if role != "?":
                self._read_message(message)
            self.messages.append(message)
            if not self.runs or self.runs[-1].role != role or role == "?":
                self.runs.append(_Run(role))
            self.runs[-1].messages.append(message)

    def _read_message(self, message: _Message) -> None:
        item, index = message.item, message.index
        for name in RESPONSE_FIELDS:
            if name in item:
                self.say("ANT-SHAPE-1", (index, name), field=f"messages.{index}.{name}")
        content = item.get("content")
        if isinstance(content, str):
            message.string = True
            if not content:
                self.say("ANT-EMPTY-3", (index,))
            elif content.isspace():
                self.say("ANT-EMPTY-2", (index,))
            message.cells.append(({"type": "text", "text": content}, (index,)))
            return
        if content is None or content == []:
            if message.role == "system":
                if content is None or "output_config" not in item:
                    self.say(
                        "ANT-SYS-1", (index,), "system content must contain at least one block"
                    )
            else:
                self.say("ANT-EMPTY-3", (index,))
            return
        if not isinstance(content, list):
            self.say("GEN-SHAPE-1", (index,), "content: Input should be a valid string or list")
            return
        fallback = _last_fallback(content) if message.role == "assistant" else -1
        for position, block in enumerate(content):
            location: Location = (index, "content", position)
            if not isinstance(block, dict) or not isinstance(block.get("type"), str):
                self.say("GEN-SHAPE-1", location, "a content block is an object with a type")
                block = {"type": "?"}
            message.cells.append((block, location))
            self._check_block(block, location, message.role)
            if position < fallback and (block["type"] in THINKING or block["type"] == "tool_use"):
                self.say("ANT-THINK-7", location)

    def _check_block(self, block: Item, location: Location, role: str) -> None:
        kind: str = block["type"]
        if marked(block):
            self.markers.append(location)
        if role == "system" and kind not in SYSTEM_CONTENT:
            self.say(
                "ANT-SYS-1",
                location[:1],
                "role 'system' supports text, tool_addition, and tool_removal blocks only",
            )
            return
        if role == "user" and models_only(kind):
            self.say("ANT-PLACE-1", location, f"`{kind}` blocks can only be in assistant messages")
            return
        if kind == "text":
            self._check_text(block, location)
        elif kind == "tool_use":
            self._check_call(block, location)
        elif kind == "tool_result":
            self._check_result(block, location)
        elif kind in THINKING:
            if not signed(block):
                part = "signature" if kind == "thinking" else "data"
                self.say("ANT-THINK-1", location, f"Invalid `{part}` in `{kind}` block")
            if marked(block):
                self.say("ANT-CACHE-1", location, "cache_control cannot be set for thinking blocks")
        elif kind == "server_tool_use":
            if not isinstance(block.get("id"), str) or not SERVER_ID.match(block["id"]):
                self.say("ANT-ID-4", location)
        elif kind == "mcp_tool_use":
            if not isinstance(block.get("server_name"), str) or not block["server_name"]:
                self.say("ANT-ID-5", location, "server_name: Field required")
        elif kind == "compaction":
            if block.get("content") == "":
                self.say("ANT-COMPACT-1", location)
        elif kind in ("tool_addition", "tool_removal") and self.tools is not None:
            name = _directive_name(block)
            if name is not None and name not in self.tools:
                self.say("ANT-SYS-2", location, name=name)

    def _check_text(self, block: Item, location: Location) -> None:
        text = block.get("text")
        if not isinstance(text, str):
            self.say("GEN-SHAPE-1", location, "text: Input should be a valid string")
        elif not text:
            self.say("ANT-EMPTY-1", location)
        elif text.isspace():
            self.say("ANT-EMPTY-2", location)

    def _check_call(self, block: Item, location: Location) -> None:
        call_id, name = block.get("id"), block.get("name")
        if not isinstance(call_id, str) or not CLIENT_ID.match(call_id):
            self.say("ANT-ID-1", location)
        if not isinstance(name, str) or not NAME.match(name):
            self.say("ANT-NAME-1", location)
        if not isinstance(block.get("input"), dict):
            self.say("ANT-ID-3", location)

    def _check_result(self, block: Item, location: Location) -> None:
        call_id = block.get("tool_use_id")
        if not isinstance(call_id, str) or not CLIENT_ID.match(call_id):
            self.say("ANT-ID-1", location)
        is_error = block.get("is_error")
        if is_error is not None and not isinstance(is_error, bool):
            self.say("GEN-SHAPE-1", location, "is_error: Input should be a valid boolean")
        if "content" not in block or isinstance(block["content"], str):
            return
        content = block["content"]
        if content is None or content == []:
            self.say("ANT-TR-3", location)
            return
        if not isinstance(content, list):
            self.say("GEN-SHAPE-1", location, "content: Input should be a valid string or list")
            return
        if all(_is_blank_text(inner) for inner in content):
            self.say("ANT-TR-3", location)
        for position, inner in enumerate(content):
            where: Location = (*location, "content", position)
            if not isinstance(inner, dict) or not isinstance(inner.get("type"), str):
                self.say("GEN-SHAPE-1", where, "a content block is an object with a type")
                continue
            kind: str = inner["type"]
            if marked(inner):
                self.markers.append(where)
            if kind == "text":
                self._check_text(inner, where)
            else:
                if no_result_content(kind):
                    self.say("ANT-TR-2", where, f"a tool_result holds no `{kind}` block")
                if is_error is True:
                    self.say("ANT-TR-1", where)
            if kind == "tool_reference" and self.tools is not None:
                name = inner.get("tool_name")
                if name not in self.tools:
                    self.say(
                        "ANT-SRV-8", where, f"tool_reference names unknown tool '{name}'"[:200]
                    )

    # -- calls and results -----------------------------------------------------------------

    def check_pairs(self) -> None:
        calls: dict[str, list[Cell]] = {}
        answered: set[str] = set()
        leading = False
        for position, run in enumerate(self.runs):
            if run.role == "assistant":
                calls, answered, leading = self._turn_calls(run), set(), True
                following = self.runs[position + 1] if position + 1 < len(self.runs) else None
                if following is None or following.role != "user":
                    self._unanswered(calls, answered, position)
                    leading = False
            elif run.role == "user":
                self._results(run, calls, answered, leading)
                if leading:
                    self._unanswered(calls, answered, position - 1)
                leading = False
            else:
                leading = False

    def _turn_calls(self, run: _Run) -> dict[str, list[Cell]]:
        calls: dict[str, list[Cell]] = {}
        for block, location in run.cells():
            if block["type"] == "tool_use":
                call_id = client_id(block, "id")
                namesakes = calls.setdefault(call_id, [])
                if namesakes:
                    self.say("ANT-ID-2", location)
                namesakes.append((block, location))
            elif block["type"] == "tool_result":
                self.say(
                    "ANT-PAIR-4", location, "`tool_result` blocks can only be in user messages"
                )
        return calls

    def _results(
        self, run: _Run, calls: dict[str, list[Cell]], answered: set[str], leading: bool
    ) -> None:
        for message in run.messages:
            other_before = False
            leading = leading and not message.string
            for block, location in message.cells:
                if block["type"] != "tool_result":
                    leading, other_before = False, True
                    continue
                call_id = client_id(block, "tool_use_id")
                if call_id not in calls:
                    self.say("ANT-PAIR-4", location, id=call_id)
                    continue
                if block.get("toolset_name") != calls[call_id][0][0].get("toolset_name"):
                    self.say("ANT-ID-5", location, "toolset_name is not that of its call")
                if not leading:
                    self.say("ANT-ORD-1" if other_before else "ANT-PAIR-3", location)
                elif call_id in answered:
                    self.say("ANT-PAIR-5", location, id=call_id)
                else:
                    answered.add(call_id)

    def _unanswered(self, calls: dict[str, list[Cell]], answered: set[str], position: int) -> None:
        if len(answered) == len(calls):
            return
        behind = len(self.runs) - position - 1
        open_end = not behind or (behind == 1 and _may_grow(self.runs[-1]))
        for call_id, namesakes in calls.items():
            if call_id not in answered:
                for _, location in namesakes:
                    self.say(
                        "ANT-PAIR-1", location, scope="send" if open_end else "prefix", id=call_id
                    )

    # -- server tools ----------------------------------------------------------------------

    def check_server_tools(self) -> None:
        turns = [at for at, run in enumerate(self.runs) if run.role == "assistant"]
        if not turns:
            return
        found = gaps(m.cells for at in turns for m in self.runs[at].messages)
        for location in found.callless:
            self.say("ANT-SRV-4", location, id="", type="tool_result")
        last = self.runs[turns[-1]]
        still_open = last is self.runs[-1] or any(b["type"] == "tool_use" for b, _ in last.cells())
        lost = found.lost if still_open else [*found.lost, *found.waiting]
        for location in lost:
            self.say("ANT-SRV-1", location, id="")
        gone = set(lost)
        for at in turns:
            calls = [block for block, _ in self.runs[at].cells() if block["type"] == "tool_use"]
            if calls:
                alone = gaps(message.cells for message in self.runs[at].messages)
                self._reply_holds_results_only(
                    at,
                    any(where not in gone for where in (*alone.waiting, *alone.lost)),
                    any(programmatic(block) for block in calls),
                )

    def _reply_holds_results_only(self, at: int, server_open: bool, by_program: bool) -> None:
        """ANT-SRV-3 and ANT-SRV-7, on the user messages up to the next assistant run."""
        for position in range(at + 1, len(self.runs)):
            run = self.runs[position]
            if run.role == "assistant":
                return
            for block, location in run.cells() if run.role == "user" else ():
                if block["type"] != "tool_result":
                    if server_open:
                        self.say("ANT-SRV-3", location)
                    if by_program:
                        self.say("ANT-SRV-7", location)

    # -- system messages, ends, markers ----------------------------------------------------

    def check_system(self) -> None:
        supported = takes_system_messages(self.request.get("model"))
        for position, message in enumerate(self.messages):
            if message.role != "system":
                continue
            where: Location = (message.index,)
            if supported is False:
                self.say("ANT-SYS-1", where, "role 'system' is not supported on this model")
            if not message.cells:
                continue
            before = self.messages[position - 1] if position else None
            after = self.messages[position + 1] if position + 1 < len(self.messages) else None
            if before is None:
                self.say(
                    "ANT-SYS-1",
                    where,
                    "use the top-level 'system' parameter for the initial system prompt",
                )
            elif before.role != "user" and not (
                before.role == "assistant"
                and before.cells
                and is_hosted_result(before.cells[-1][0]["type"])
            ):
                self.say("ANT-SYS-1", where)
            if after is not None and after.role != "assistant":
                self.say(
                    "ANT-SYS-1",
                    where,
                    "role 'system' must precede an 'assistant' message or end the array",
                )

    def check_ends(self, items: Sequence[Any]) -> None:
        if len(items) > MAX_MESSAGES:
            self.say("ANT-LIM-1", (MAX_MESSAGES,))
        if not self.messages:
            return
        if self.messages[0].role == "assistant":
            self.say("ANT-ROLE-1", (0,))
        thinking = self.request.get("thinking")
        mode = thinking.get("type") if isinstance(thinking, Mapping) else None
        last = self.messages[-1]
        where: Location = (last.index,)
        if last.role == "user":
            if mode == "enabled" and all_results(last):
                self._starts_with_thinking()
            return
        if last.role != "assistant":
            return
        run = self.runs[-1]
        if mode == "disabled" and any(block["type"] in THINKING for block, _ in last.cells):
            self.say("ANT-THINK-5", where)
        if last.cells and last.cells[-1][0]["type"] in THINKING:
            self.say("ANT-END-3", where)
        if any(block["type"] == "tool_use" for block, _ in run.cells()) or open_server_calls(run):
            return
        prefill_refused = refuses_prefill(self.request.get("model"))
        if prefill_refused:
            self.say("ANT-END-1", where)
        elif prefill_refused is False and last.cells and _ends_in_space(last.cells[-1][0]):
            self.say("ANT-END-2", last.cells[-1][1])

    def _starts_with_thinking(self) -> None:
        turn = next((run for run in reversed(self.runs) if run.role == "assistant"), None)
        if turn is None or turn is not self.runs[-2]:
            return
        cells = list(turn.cells())
        if any(block["type"] == "tool_use" for block, _ in cells):
            first, location = cells[0]
            if first["type"] not in THINKING:
                self.say("ANT-THINK-3", location)

    def check_markers(self) -> None:
        count = len(self.markers) + markers_in_request(self.request)
        surplus = min(count - MAX_MARKERS, len(self.markers))
        if surplus > 0:
            self.markers.sort(key=_order)
            for location in self.markers[:surplus]:
                self.say("ANT-CACHE-1", location, n=count)


def _may_grow(run: _Run) -> bool:
    """Whether a user run holds nothing but results, so that more of them may follow."""
    return run.role == "user" and all(
        not message.string and all(block["type"] == "tool_result" for block, _ in message.cells)
        for message in run.messages
    )


def all_results(message: _Message) -> bool:
    return bool(message.cells) and all(b["type"] == "tool_result" for b, _ in message.cells)


def open_server_calls(run: _Run) -> bool:
    """True where the run ends with a server call that has no result yet (a paused turn)."""
    opened: set[str] = set()
    for block, _ in run.cells():
        if block["type"] in SERVER_CALLS:
            opened.add(client_id(block, "id"))
        elif is_hosted_result(block["type"]):
            opened.discard(client_id(block, "tool_use_id"))
    return bool(opened)


def _is_blank_text(block: Any) -> bool:
    return (
        isinstance(block, dict)
        and block.get("type") == "text"
        and isinstance(block.get("text"), str)
        and blank(block["text"])
    )


def _ends_in_space(block: Item) -> bool:
    text = block.get("text")
    return isinstance(text, str) and not blank(text) and text != text.rstrip()


def _last_fallback(content: list[Any]) -> int:
    """Position of the last fallback block of a message, or -1."""
    for position in range(len(content) - 1, -1, -1):
        block = content[position]
        if isinstance(block, dict) and block.get("type") == "fallback":
            return position
    return -1


def _directive_name(block: Item) -> str | None:
    tool = block.get("tool")
    name = block.get("tool_name") or block.get("name")
    if name is None and isinstance(tool, Mapping):
        name = tool.get("name")
    return name if isinstance(name, str) else None


__all__ = ["RESULT_CONTENT", "all_results", "violations"]
