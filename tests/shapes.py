"""Small histories, each with what the API would refuse in it.

One row a shape: its name, the items, the rest of the request, and the violations in the order of
their rules, as `rule path scope`.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from stopkit import Api

A: Final = "anthropic.messages"
R: Final = "openai.responses"
C: Final = "openai.chat"
Item: TypeAlias = dict[str, Any]
Shape: TypeAlias = tuple[str, list[Any], Item, list[str]]
"""Name, items, the rest of the request, violations."""


def user(*content: Any) -> Item:
    return {"role": "user", "content": content[0] if content[0] == "hi" else list(content)}


def model(*content: Any) -> Item:
    return {"role": "assistant", "content": list(content)}


def text(words: str = "words") -> Item:
    return {"type": "text", "text": words}


def call(call_id: str, **more: Any) -> Item:
    return {"type": "tool_use", "id": call_id, "name": "run", "input": {}, **more}


def result(call_id: str, **more: Any) -> Item:
    return {"type": "tool_result", "tool_use_id": call_id, "content": "done", **more}


def server(call_id: str) -> Item:
    return {"type": "server_tool_use", "id": call_id, "name": "web_search", "input": {}}


def hits(call_id: str) -> Item:
    return {"type": "web_search_tool_result", "tool_use_id": call_id, "content": []}


THINKING = {"type": "thinking", "thinking": "so", "signature": "sig"}
FALLBACK = {"type": "fallback", "from": {}, "to": {}}
COMPACTION = {"type": "compaction", "content": ""}
MARK = {"cache_control": {"type": "ephemeral"}}
HI = user("hi")
SEARCH = server("srvtoolu_1")
HITS = hits("srvtoolu_1")
IMAGE = {"type": "image", "source": {}}
PROGRAMMATIC = {"caller": {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}}
SYSTEM = {"role": "system", "content": "rule"}
DIRECTIVE = {"role": "system", "content": [], "output_config": {}}
TOOL_CHANGE = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "other"}}

ANTHROPIC: list[Shape] = [
    ("plain", [HI, model(text()), HI], {}, []),
    ("empty", [], {}, []),
    ("same role twice", [HI, HI, model(text()), model(text()), HI], {}, []),
    ("answered", [HI, model(call("a"), call("b")), user(result("b"), result("a"))], {}, []),
    (
        "run over a border",
        [HI, model(call("a"), call("b")), user(result("b")), user(result("a"), text())],
        {},
        [],
    ),
    ("open at the end", [HI, model(call("a"))], {}, ["ANT-PAIR-1 messages.1.content.0 send"]),
    (
        "half answered",
        [HI, model(call("a"), call("b")), user(result("b"))],
        {},
        ["ANT-PAIR-1 messages.1.content.0 send"],
    ),
    ("text in place", [HI, model(call("a")), HI], {}, ["ANT-PAIR-1 messages.1.content.0 prefix"]),
    (
        "behind text",
        [HI, model(call("a"), call("b")), user(result("a"), text(), result("b"))],
        {},
        ["ANT-ORD-1 messages.2.content.2 prefix", "ANT-PAIR-1 messages.1.content.1 prefix"],
    ),
    (
        "behind a text message",
        [HI, model(call("a")), HI, user(result("a"))],
        {},
        ["ANT-PAIR-1 messages.1.content.0 prefix", "ANT-PAIR-3 messages.3.content.0 prefix"],
    ),
    (
        "behind a later turn",
        [HI, model(call("a")), HI, model(text()), user(result("a"))],
        {},
        ["ANT-PAIR-1 messages.1.content.0 prefix", "ANT-PAIR-4 messages.4.content.0 prefix"],
    ),
    (
        "before its call",
        [user(text(), result("a")), model(call("a"))],
        {},
        ["ANT-PAIR-1 messages.1.content.0 send", "ANT-PAIR-4 messages.0.content.1 prefix"],
    ),
    (
        "inside the assistant message",
        [HI, model(call("a"), result("a")), HI],
        {},
        ["ANT-PAIR-1 messages.1.content.0 prefix", "ANT-PAIR-4 messages.1.content.1 prefix"],
    ),
    (
        "two results",
        [HI, model(call("a")), user(result("a"), result("a"))],
        {},
        ["ANT-PAIR-5 messages.2.content.1 prefix"],
    ),
    (
        "stored twice",
        [HI, model(call("a")), model(call("a")), user(result("a"))],
        {},
        ["ANT-ID-2 messages.2.content.0 prefix"],
    ),
    (
        "id in a later turn",
        [HI, model(call("a")), user(result("a")), model(call("a")), user(result("a"))],
        {},
        [],
    ),
    (
        "bad ids",
        [HI, model(call("a b")), user(result("a b"))],
        {},
        ["ANT-ID-1 messages.1.content.0 prefix", "ANT-ID-1 messages.2.content.0 prefix"],
    ),
    (
        "bad input and name",
        [HI, model(call("a", input="{", name="")), user(result("a"))],
        {},
        ["ANT-ID-3 messages.1.content.0 prefix", "ANT-NAME-1 messages.1.content.0 prefix"],
    ),
    (
        "toolset",
        [HI, model(call("a", toolset_name="desk")), user(result("a"))],
        {},
        ["ANT-ID-5 messages.2.content.0 prefix"],
    ),
    (
        "mcp without server",
        [HI, model({"type": "mcp_tool_use", "id": "m"}, {**HITS, "tool_use_id": "m"}), HI],
        {},
        ["ANT-ID-5 messages.1.content.0 prefix"],
    ),
    (
        "placed with the user",
        [user(text(), THINKING, SEARCH, call("a"))],
        {},
        [f"ANT-PLACE-1 messages.0.content.{n} prefix" for n in (1, 2, 3)],
    ),
    ("stored fields", [{**HI, "id": "m"}], {}, ["ANT-SHAPE-1 messages.0.id prefix"]),
    ("model first", [model(text()), HI], {}, ["ANT-ROLE-1 messages.0 prefix"]),
    (
        "prefill",
        [HI, model(text())],
        {"model": "claude-opus-4-6"},
        ["ANT-END-1 messages.1 send"],
    ),
    ("prefill allowed", [HI, model(text())], {"model": "claude-3-5-sonnet-20241022"}, []),
    (
        "prefill with a blank end",
        [HI, model(text("so "))],
        {"model": "claude-sonnet-4-5-20250929"},
        ["ANT-END-2 messages.1.content.0 send"],
    ),
    ("ends in thinking", [HI, model(THINKING)], {}, ["ANT-END-3 messages.1 send"]),
    ("thinking in the middle", [HI, model(THINKING), HI], {}, []),
    ("system", [HI, SYSTEM, model(text())], {}, []),
    ("system on a model with", [HI, SYSTEM], {"model": "claude-fable-5"}, []),
    (
        "system on a model without",
        [HI, SYSTEM],
        {"model": "claude-sonnet-5"},
        ["ANT-SYS-1 messages.1 prefix"],
    ),
    ("system first", [SYSTEM, HI], {}, ["ANT-SYS-1 messages.0 prefix"]),
    (
        "system without content",
        [HI, {"role": "system", "content": []}, model(text()), HI],
        {},
        ["ANT-SYS-1 messages.1 prefix"],
    ),
    ("directive", [DIRECTIVE, HI, model(text()), DIRECTIVE, HI], {}, []),
    ("system behind a server result", [HI, model(SEARCH, HITS), SYSTEM, model(text())], {}, []),
    ("system before the user", [HI, SYSTEM, HI], {}, ["ANT-SYS-1 messages.1 prefix"]),
    (
        "change of an unknown tool",
        [HI, {"role": "system", "content": [TOOL_CHANGE]}],
        {"tools": [{"name": "run"}]},
        ["ANT-SYS-2 messages.1.content.0 prefix"],
    ),
    ("empty text", [user(text(""))], {}, ["ANT-EMPTY-1 messages.0.content.0 prefix"]),
    (
        "blank texts",
        [user(text(" "), text()), {"role": "assistant", "content": "\n"}, HI],
        {},
        ["ANT-EMPTY-2 messages.0.content.0 prefix", "ANT-EMPTY-2 messages.1 prefix"],
    ),
    (
        "no content",
        [{"role": "user", "content": ""}, model(), {"role": "user", "content": None}],
        {},
        [f"ANT-EMPTY-3 messages.{n} prefix" for n in range(3)],
    ),
    (
        "unsigned",
        [HI, model({**THINKING, "signature": ""}, {"type": "redacted_thinking"}, text()), HI],
        {},
        [f"ANT-THINK-1 messages.1.content.{n} prefix" for n in (0, 1)],
    ),
    (
        "thinking lost",
        [HI, model(text(), call("a")), user(result("a"))],
        {"thinking": {"type": "enabled"}},
        ["ANT-THINK-3 messages.1.content.0 send"],
    ),
    (
        "thinking off",
        [HI, model(THINKING, text())],
        {"thinking": {"type": "disabled"}},
        ["ANT-THINK-5 messages.1 send"],
    ),
    (
        "before a fallback",
        [HI, model(THINKING, text(), FALLBACK, THINKING, text()), HI],
        {},
        ["ANT-THINK-7 messages.1.content.0 prefix"],
    ),
    ("paused", [HI, model(text(), SEARCH)], {}, []),
    ("over two messages", [HI, model(SEARCH), model(HITS, text()), HI], {}, []),
    ("search cut", [HI, model(SEARCH), HI], {}, ["ANT-SRV-1 messages.1.content.0 prefix"]),
    (
        "search lost",
        [HI, model(SEARCH, call("a")), user(result("a")), model(text()), HI],
        {},
        ["ANT-SRV-1 messages.1.content.0 prefix"],
    ),
    (
        "deferred",
        [HI, model(SEARCH, call("a")), user(result("a")), model(HITS, text()), HI],
        {},
        [],
    ),
    (
        "words while deferred",
        [HI, model(SEARCH, call("a")), user(result("a"), text()), model(HITS, text()), HI],
        {},
        ["ANT-SRV-3 messages.2.content.1 prefix"],
    ),
    (
        "over an empty message",
        [HI, model(SEARCH), model(), model(HITS, text()), HI],
        {},
        ["ANT-EMPTY-3 messages.2 prefix"],
    ),
    (
        "hits again",
        [HI, model(SEARCH), model(HITS), model(HITS), HI],
        {},
        ["ANT-SRV-4 messages.3.content.0 prefix"],
    ),
    (
        "foreign search",
        [HI, model(server("ws-1"), hits("ws-1")), HI],
        {},
        ["ANT-ID-4 messages.1.content.0 prefix"],
    ),
    ("hits alone", [HI, model(HITS, text()), HI], {}, ["ANT-SRV-4 messages.1.content.0 prefix"]),
    (
        "words to a program",
        [HI, model(call("a", **PROGRAMMATIC)), user(result("a"), text()), model(text()), HI],
        {},
        ["ANT-SRV-7 messages.2.content.1 prefix"],
    ),
    (
        "unknown tool reference",
        [
            HI,
            model(call("a")),
            user(result("a", content=[{"type": "tool_reference", "tool_name": "x"}])),
        ],
        {"tools": [{"name": "run"}]},
        ["ANT-SRV-8 messages.2.content.0.content.0 prefix"],
    ),
    (
        "image in an error",
        [HI, model(call("a")), user(result("a", content=[text(), IMAGE], is_error=True))],
        {},
        ["ANT-TR-1 messages.2.content.0.content.1 prefix"],
    ),
    (
        "thinking in a result",
        [HI, model(call("a")), user(result("a", content=[text(), THINKING]))],
        {},
        ["ANT-TR-2 messages.2.content.0.content.1 prefix"],
    ),
    (
        "empty result lists",
        [
            HI,
            model(call("a"), call("b")),
            user(result("a", content=[]), result("b", content=[text("")])),
        ],
        {},
        [
            "ANT-EMPTY-1 messages.2.content.1.content.0 prefix",
            "ANT-TR-3 messages.2.content.0 prefix",
            "ANT-TR-3 messages.2.content.1 prefix",
        ],
    ),
    (
        "markers",
        [user(*[{**text(), **MARK}] * 4), model({**THINKING, **MARK}, text()), HI],
        {"system": [{**text(), **MARK}]},
        [
            "ANT-CACHE-1 messages.0.content.0 prefix",
            "ANT-CACHE-1 messages.0.content.1 prefix",
            "ANT-CACHE-1 messages.1.content.0 prefix",
        ],
    ),
    ("too long", [HI] * 100_001, {}, ["ANT-LIM-1 messages.100000 send"]),
    (
        "empty compaction",
        [HI, model(COMPACTION, text()), HI],
        {},
        ["ANT-COMPACT-1 messages.1.content.0 prefix"],
    ),
    ("no message", ["hi"], {}, ["GEN-SHAPE-1 messages.0 prefix"]),
    ("unknown role", [{"role": "tool", "content": "x"}], {}, ["GEN-SHAPE-1 messages.0 prefix"]),
    ("no block", [user(text(), {"text": "x"})], {}, ["GEN-SHAPE-1 messages.0.content.1 prefix"]),
    (
        "no JSON",
        [HI, model(call("a", input={"n": float("nan"), "s": ["\ud800"]})), user(result("a"))],
        {},
        [
            "GEN-JSON-1 messages.1.content.0.input.n prefix",
            "GEN-JSON-1 messages.1.content.0.input.s.0 prefix",
        ],
    ),
    (
        "lone surrogate",
        [user(text("a\ud800"))],
        {},
        ["GEN-JSON-1 messages.0.content.0.text prefix"],
    ),
    (
        "behind another role",
        [HI, model(call("a")), SYSTEM, user(result("a"))],
        {},
        [
            "ANT-PAIR-1 messages.1.content.0 prefix",
            "ANT-PAIR-3 messages.3.content.0 prefix",
            "ANT-SYS-1 messages.2 prefix",
        ],
    ),
    ("orphan", [user(result("a"), text())], {}, ["ANT-PAIR-4 messages.0.content.0 prefix"]),
    (
        "two different results",
        [HI, model(call("a")), user(result("a"), result("a", content="more"))],
        {},
        ["ANT-PAIR-5 messages.2.content.1 prefix"],
    ),
    (
        "one id for two calls",
        [
            HI,
            model(call("a", input={"n": 1}), call("a", input={"n": 2})),
            user(result("a", content="one"), result("a", content="two")),
        ],
        {},
        ["ANT-ID-2 messages.1.content.1 prefix", "ANT-PAIR-5 messages.2.content.1 prefix"],
    ),
    (
        "no id",
        [HI, model({"type": "tool_use", "name": "run", "input": {}}), HI],
        {},
        ["ANT-ID-1 messages.1.content.0 prefix", "ANT-PAIR-1 messages.1.content.0 prefix"],
    ),
    (
        "input as text and as nothing",
        [
            HI,
            model(call("a", input='{"n": 1}'), call("b", input=None), call("c", input='{"n')),
            user(result("a"), result("b")),
        ],
        {},
        [
            *[f"ANT-ID-3 messages.1.content.{n} prefix" for n in range(3)],
            "ANT-PAIR-1 messages.1.content.2 send",
        ],
    ),
    (
        "long name",
        [HI, model(call("a", name="n" * 129)), user(result("a"))],
        {},
        ["ANT-NAME-1 messages.1.content.0 prefix"],
    ),
    (
        "marker on an empty text",
        [HI, model(text(), {**text(""), **MARK}), HI],
        {},
        ["ANT-EMPTY-1 messages.1.content.1 prefix"],
    ),
    (
        "words in vain",
        [HI, model(SEARCH, call("a")), user(result("a"), text())],
        {},
        ["ANT-SRV-3 messages.2.content.1 prefix"],
    ),
    (
        "words as content",
        [HI, {"role": "assistant", "content": 7}],
        {},
        ["GEN-SHAPE-1 messages.1 prefix"],
    ),
]


def says(role: str = "user", **more: Any) -> Item:
    return {"type": "message", "role": role, "content": "words", **more}


def fc(call_id: Any, **more: Any) -> Item:
    return {"type": "function_call", "call_id": call_id, "name": "run", "arguments": "{}", **more}


def out(call_id: Any, kind: str = "function_call", **more: Any) -> Item:
    return {"type": f"{kind}_output", "call_id": call_id, "output": "done", **more}


def thought(item_id: str = "rs_1", **more: Any) -> Item:
    return {"type": "reasoning", "id": item_id, "summary": [], **more}


ANSWER = says("assistant")
ASK = says()
APPROVAL = {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "t", "name": "n"}
GRANT = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
PROGRAM = {"type": "program", "id": "p_1", "call_id": "p", "code": "", "fingerprint": "f"}
BY_PROGRAM = {"caller": {"type": "program", "caller_id": "p"}}
PROGRAM_OUT = {"type": "program_output", "id": "p_2", "call_id": "p", "status": "completed"}
SCREEN = {"type": "computer_call", "id": "cu_1", "call_id": "s", "status": "completed"}
SEARCHED = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
LOCAL = {"type": "local_shell_call", "id": "lsh_1", "call_id": "l", "status": "completed"}

RESPONSES: list[Shape] = [
    ("plain", [ASK, ANSWER, ASK], {}, []),
    ("nothing", [], {}, ["OAI-SHAPE-4 input send"]),
    ("nothing but a chain", [], {"previous_response_id": "resp_1"}, []),
    ("open at the end", [ASK, fc("a"), fc("b"), out("b")], {}, ["OAI-PAIR-1 input.1 send"]),
    ("open before the user", [ASK, fc("a"), ASK], {}, ["OAI-PAIR-1 input.1 prefix"]),
    (
        "open before a later turn",
        [ASK, fc("a"), fc("b"), out("b"), ANSWER],
        {},
        ["OAI-PAIR-1 input.1 prefix"],
    ),
    ("message beside an open call", [ASK, fc("a"), ANSWER], {}, ["OAI-PAIR-1 input.1 send"]),
    ("orphan", [ASK, out("a")], {}, ["OAI-PAIR-2 input.1 prefix"]),
    ("orphan under a chain", [out("a"), ASK], {"conversation": "c"}, []),
    (
        "before its call",
        [out("a"), fc("a")],
        {},
        ["OAI-PAIR-1 input.1 send", "OAI-PAIR-2 input.0 prefix"],
    ),
    (
        "another family",
        [ASK, fc("a"), out("a", "custom_tool_call")],
        {},
        ["OAI-PAIR-1 input.1 send", "OAI-PAIR-3 input.2 prefix"],
    ),
    ("two outputs", [fc("a"), out("a"), out("a")], {}, ["OAI-PAIR-4 input.2 prefix"]),
    (
        "call_id again",
        [fc("a"), out("a"), fc("a"), out("a")],
        {},
        ["OAI-ID-4 input.2 prefix"],
    ),
    (
        "keyed by id",
        [LOCAL, {"type": "local_shell_call_output", "id": "l", "output": "{}"}],
        {},
        ["OAI-PAIR-1 input.0 send", "OAI-SHELL-1 input.1 prefix"],
    ),
    (
        "patch status",
        [
            {"type": "apply_patch_call", "call_id": "a", "status": "failed"},
            out("a", "apply_patch_call", status="cancelled"),
        ],
        {},
        ["OAI-PATCH-1 input.0 prefix", "OAI-PATCH-1 input.1 prefix"],
    ),
    (
        "compaction",
        [{"type": "compaction"}, {"type": "compaction_trigger"}, ASK],
        {},
        ["OAI-COMP-1 input.0 prefix", "OAI-COMP-1 input.1 prefix"],
    ),
    (
        "open screen",
        [SCREEN, ASK],
        {},
        ["OAI-CU-1 input.0 prefix", "OAI-PAIR-1 input.0 prefix"],
    ),
    ("thought alone", [ASK, thought(), ASK], {}, ["OAI-REAS-1 input.1 prefix"]),
    ("thought at the end", [ASK, thought()], {}, ["OAI-REAS-1 input.1 send"]),
    ("thoughts before a call", [thought(), thought("rs_2"), fc("a"), out("a")], {}, []),
    ("cut seal", [thought(encrypted_content=""), ANSWER], {}, ["OAI-REAS-3 input.0 prefix"]),
    ("id twice", [thought(), thought(), ANSWER], {}, ["OAI-ID-1 input.1 prefix"]),
    (
        "wrong beginnings",
        [fc("a", id="call_a"), out("a", id="ctco_1")],
        {},
        ["OAI-ID-2 input.0 prefix", "OAI-ID-2 input.1 prefix"],
    ),
    ("right beginnings", [fc("a", id="fc_a"), out("a", id="fco_1")], {}, []),
    (
        "lengths",
        [fc("a" * 65), out("a" * 65), fc(""), out(""), ANSWER | {"id": "msg_" + "1" * 61}],
        {},
        [f"OAI-ID-3 input.{n} prefix" for n in range(5)],
    ),
    (
        "no call_id",
        [fc(None), ASK],
        {},
        ["OAI-ID-3 input.0 prefix", "OAI-PAIR-1 input.0 prefix"],
    ),
    (
        "store false",
        [thought(), fc("a", id="fc_1"), out("a"), {"type": "item_reference", "id": "msg_1"}],
        {"store": False},
        [f"OAI-STORE-1 input.{n} prefix" for n in (0, 1, 3)],
    ),
    (
        "hosted in progress",
        [SEARCHED | {"status": "in_progress"}, ANSWER],
        {},
        ["OAI-HOST-1 input.0 prefix"],
    ),
    ("granted", [APPROVAL, GRANT, ANSWER], {}, []),
    ("undecided", [APPROVAL, ASK], {}, ["OAI-MCP-1 input.0 prefix"]),
    ("undecided at the end", [ASK, APPROVAL], {}, ["OAI-MCP-1 input.1 send"]),
    (
        "decided twice and never asked",
        [APPROVAL, GRANT, GRANT, GRANT | {"approval_request_id": "mcpr_2"}],
        {},
        ["OAI-MCP-1 input.2 prefix", "OAI-MCP-1 input.3 prefix"],
    ),
    ("program", [PROGRAM, fc("a", **BY_PROGRAM), out("a"), PROGRAM_OUT, ANSWER], {}, []),
    ("program at work", [PROGRAM, fc("a", **BY_PROGRAM), out("a")], {}, []),
    ("program lost", [PROGRAM, ASK], {}, ["OAI-PROG-1 input.0 prefix"]),
    ("program gone", [fc("a", **BY_PROGRAM), out("a")], {}, ["OAI-PROG-1 input.0 prefix"]),
    (
        "program status",
        [PROGRAM, PROGRAM_OUT | {"status": "failed"}],
        {},
        ["OAI-PROG-1 input.1 prefix"],
    ),
    (
        "types of fields",
        [fc("a", arguments={}), out("a", output=None), fc("b", name="a b"), out("b")],
        {},
        [f"OAI-SHAPE-1 input.{n} prefix" for n in range(3)],
    ),
    (
        "wrong parts",
        [
            says(content=[{"type": "output_text", "text": "x"}]),
            says("assistant", content=[{"type": "input_text", "text": "x"}]),
        ],
        {},
        ["OAI-SHAPE-2 input.0.content.0 prefix", "OAI-SHAPE-2 input.1.content.0 prefix"],
    ),
    (
        "unknown fields",
        [says(status="completed"), says("assistant", status="completed", parsed=1)],
        {},
        ["OAI-SHAPE-3 input.0.status prefix", "OAI-SHAPE-3 input.1.parsed prefix"],
    ),
    (
        "cut arguments",
        [fc("a", arguments='{"p'), out("a"), fc("b", arguments=""), out("b")],
        {},
        ["OAI-SHAPE-4 input.0 prefix", "OAI-SHAPE-4 input.2 prefix"],
    ),
    ("unknown type", [{"type": "x_new"}, ASK], {}, []),
    ("no item", [1, {"a": 1}], {}, ["GEN-SHAPE-1 input.0 prefix", "GEN-SHAPE-1 input.1 prefix"]),
    ("no JSON", [ASK, {"type": "x_new", "n": float("inf")}], {}, ["GEN-JSON-1 input.1.n prefix"]),
    (
        "two different outputs",
        [fc("a"), out("a"), out("a", output="more")],
        {},
        ["OAI-PAIR-4 input.2 prefix"],
    ),
    (
        "call stored twice",
        [ASK, fc("a"), fc("a"), out("a")],
        {},
        ["OAI-ID-4 input.2 prefix", "OAI-PAIR-1 input.2 send"],
    ),
    (
        "one id for two items",
        [thought(), fc("a", id="rs_1"), out("a")],
        {},
        ["OAI-ID-1 input.1 prefix", "OAI-ID-2 input.1 prefix"],
    ),
    (
        "hosted item of another provider",
        [SEARCHED | {"id": "srvtoolu_1"}, ANSWER],
        {},
        ["OAI-ID-2 input.0 prefix"],
    ),
    ("thought before a search", [thought(), SEARCHED, ANSWER], {}, []),
    (
        "thought before a lost search",
        [thought(), SEARCHED | {"status": "searching"}, ASK],
        {},
        ["OAI-HOST-1 input.1 prefix"],
    ),
    (
        "output too long",
        [fc("a"), out("a", output="x" * 10_485_761)],
        {},
        ["OAI-SHAPE-1 input.1 prefix"],
    ),
    (
        "empty name",
        [fc("a", name=""), out("a")],
        {},
        ["OAI-SHAPE-1 input.0 prefix"],
    ),
]


def calls(*ids: str, **more: Any) -> Item:
    listed = [
        {"id": i, "type": "function", "function": {"name": "run", "arguments": "{}", **more}}
        for i in ids
    ]
    return {"role": "assistant", "content": None, "tool_calls": listed}


def tool(call_id: str, **more: Any) -> Item:
    return {"role": "tool", "tool_call_id": call_id, "content": "done", **more}


LEGACY = {"role": "assistant", "function_call": {"name": "clock", "arguments": "{}"}}
CLOCK = {"role": "function", "name": "clock", "content": "12:00"}

CHAT: list[Shape] = [
    ("answered", [HI, calls("a", "b"), tool("b"), tool("a"), HI], {}, []),
    ("ends with the model", [HI, {"role": "assistant", "content": " "}], {}, []),
    (
        "half answered",
        [HI, calls("a", "b"), tool("b")],
        {},
        ["CHAT-PAIR-1 messages.1.tool_calls.0 send"],
    ),
    (
        "unanswered",
        [HI, calls("a", "b"), tool("b"), HI],
        {},
        ["CHAT-PAIR-1 messages.1.tool_calls.0 prefix"],
    ),
    (
        "steer between",
        [HI, calls("a", "b"), tool("b"), HI, tool("a")],
        {},
        ["CHAT-ORD-1 messages.4 prefix", "CHAT-PAIR-1 messages.1.tool_calls.0 prefix"],
    ),
    ("orphan", [HI, tool("a")], {}, ["CHAT-PAIR-2 messages.1 prefix"]),
    (
        "of an earlier turn",
        [HI, calls("a"), tool("a"), calls("b"), tool("b"), tool("a")],
        {},
        ["CHAT-PAIR-2 messages.5 prefix"],
    ),
    (
        "ids",
        [HI, calls("a", "a", "c" * 41), tool("a"), tool("a"), tool("c" * 41)],
        {},
        [
            "CHAT-ID-1 messages.1.tool_calls.1 prefix",
            "CHAT-ID-1 messages.1.tool_calls.2 prefix",
            "CHAT-ID-1 messages.3 prefix",
            "CHAT-ID-1 messages.4 prefix",
        ],
    ),
    (
        "arguments and name",
        [HI, calls("a", arguments='{"a', name="a b"), tool("a")],
        {},
        [
            "CHAT-ARG-1 messages.1.tool_calls.0 prefix",
            "CHAT-NAME-1 messages.1.tool_calls.0 prefix",
        ],
    ),
    (
        "nothing",
        [HI, {"role": "assistant", "content": None, "tool_calls": []}, {"role": "assistant"}],
        {},
        [
            "CHAT-EMPTY-1 messages.1 prefix",
            "CHAT-EMPTY-2 messages.1 prefix",
            "CHAT-EMPTY-2 messages.2 prefix",
        ],
    ),
    ("refusal", [HI, {"role": "assistant", "content": None, "refusal": "no"}], {}, []),
    (
        "tool content",
        [HI, calls("a", "b"), tool("a", content=None), tool("b", content=[text(), IMAGE])],
        {},
        ["CHAT-TOOL-1 messages.2 prefix", "CHAT-TOOL-1 messages.3.content.1 prefix"],
    ),
    ("legacy", [HI, LEGACY, CLOCK, HI], {}, []),
    ("legacy open", [HI, LEGACY], {}, ["CHAT-FN-1 messages.1 send"]),
    ("legacy unanswered", [HI, LEGACY, HI], {}, ["CHAT-FN-1 messages.1 prefix"]),
    ("legacy orphan", [HI, CLOCK], {}, ["CHAT-FN-1 messages.1 prefix"]),
    (
        "legacy mixed",
        [HI, {**LEGACY, **calls("a")}, tool("a")],
        {},
        ["CHAT-FN-1 messages.1 prefix"],
    ),
    ("no message", [[], {"role": "x"}], {}, [f"GEN-SHAPE-1 messages.{n} prefix" for n in (0, 1)]),
    ("no JSON", [{**HI, "x_note": float("nan")}], {}, ["GEN-JSON-1 messages.0.x_note prefix"]),
    (
        "two different results",
        [HI, calls("a"), tool("a"), tool("a", content="more")],
        {},
        ["CHAT-ID-1 messages.3 prefix"],
    ),
    (
        "before its call",
        [HI, tool("a"), calls("a")],
        {},
        ["CHAT-PAIR-1 messages.2.tool_calls.0 send", "CHAT-PAIR-2 messages.1 prefix"],
    ),
    (
        "arguments as an object and as nothing",
        [HI, calls("a", arguments={"n": 1}), tool("a"), calls("b", arguments=""), tool("b")],
        {},
        [f"CHAT-ARG-1 messages.{n}.tool_calls.0 prefix" for n in (1, 3)],
    ),
    (
        "no name and no id",
        [HI, calls("", name=""), tool("")],
        {},
        [
            "CHAT-ID-1 messages.1.tool_calls.0 prefix",
            "CHAT-ID-1 messages.2 prefix",
            "CHAT-NAME-1 messages.1.tool_calls.0 prefix",
        ],
    ),
]

SHAPES: tuple[tuple[Api, list[Shape]], ...] = ((A, ANTHROPIC), (R, RESPONSES), (C, CHAT))
"""The shapes of each API."""

REPAIRS: dict[Api, dict[str, list[str]]] = {
    A: {
        "open at the end": ["inserted ANT-PAIR-1 messages.1.content.0"],
        "half answered": ["inserted ANT-PAIR-1 messages.1.content.0"],
        "text in place": ["inserted ANT-PAIR-1 messages.1.content.0"],
        "behind text": ["moved ANT-ORD-1 messages.2.content.2"],
        "behind a text message": ["moved ANT-PAIR-3 messages.3.content.0"],
        "behind a later turn": ["moved ANT-PAIR-3 messages.4.content.0"],
        "before its call": ["moved ANT-PAIR-3 messages.0.content.1"],
        "inside the assistant message": ["moved ANT-PAIR-4 messages.1.content.1"],
        "two results": ["removed ANT-PAIR-5 messages.2.content.1"],
        "stored twice": ["removed ANT-ID-2 messages.2"],
        "bad ids": ["renamed ANT-ID-1 messages.1.content.0"],
        "bad input and name": [
            "rewritten ANT-ID-3 messages.1.content.0",
            "renamed ANT-NAME-1 messages.1.content.0",
        ],
        "toolset": ["rewritten ANT-ID-5 messages.2.content.0"],
        "mcp without server": [
            "removed ANT-ID-5 messages.1.content.0",
            "removed ANT-SRV-4 messages.1.content.1",
        ],
        "placed with the user": [
            "removed ANT-PLACE-1 messages.0.content.1",
            "removed ANT-PLACE-1 messages.0.content.2",
            "to_text ANT-PLACE-1 messages.0.content.3",
        ],
        "stored fields": ["removed ANT-SHAPE-1 messages.0.id"],
        "model first": ["noted ANT-ROLE-1 messages.0"],
        "prefill": [],
        "prefill with a blank end": ["rewritten ANT-END-2 messages.1.content.0"],
        "ends in thinking": [],
        "system on a model without": ["to_text ANT-SYS-1 messages.1"],
        "system first": ["moved ANT-SYS-1 messages.0"],
        "system without content": ["removed ANT-SYS-1 messages.1"],
        "system before the user": ["moved ANT-SYS-1 messages.1"],
        "change of an unknown tool": [
            "removed ANT-SYS-1 messages.1",
            "removed ANT-SYS-2 messages.1.content.0",
        ],
        "empty text": ["removed ANT-EMPTY-1 messages.0.content.0"],
        "blank texts": [
            "removed ANT-EMPTY-2 messages.0.content.0",
            "removed ANT-EMPTY-2 messages.1",
        ],
        "no content": [
            "removed ANT-EMPTY-3 messages.0",
            "removed ANT-EMPTY-3 messages.1",
            "removed ANT-EMPTY-3 messages.2",
        ],
        "unsigned": [
            "removed ANT-THINK-1 messages.1.content.0",
            "removed ANT-THINK-1 messages.1.content.1",
        ],
        "thinking lost": [],
        "thinking off": ["removed ANT-THINK-5 messages.1.content.0"],
        "before a fallback": ["removed ANT-THINK-7 messages.1.content.0"],
        "search cut": ["removed ANT-SRV-1 messages.1.content.0"],
        "search lost": ["removed ANT-SRV-1 messages.1.content.0"],
        "words while deferred": ["deferred ANT-SRV-3 messages.2.content.1"],
        "over an empty message": ["removed ANT-EMPTY-3 messages.2"],
        "hits again": ["removed ANT-SRV-4 messages.3.content.0"],
        "foreign search": [
            "removed ANT-ID-4 messages.1.content.0",
            "removed ANT-SRV-4 messages.1.content.1",
        ],
        "hits alone": ["removed ANT-SRV-4 messages.1.content.0"],
        "words to a program": ["deferred ANT-SRV-7 messages.2.content.1"],
        "unknown tool reference": ["to_text ANT-SRV-8 messages.2.content.0.content.0"],
        "image in an error": ["moved ANT-TR-1 messages.2.content.0.content.1"],
        "thinking in a result": ["removed ANT-TR-2 messages.2.content.0.content.1"],
        "empty result lists": [
            "rewritten ANT-TR-3 messages.2.content.0",
            "removed ANT-EMPTY-1 messages.2.content.1.content.0",
        ],
        "markers": [
            "removed ANT-CACHE-1 messages.0.content.0",
            "removed ANT-CACHE-1 messages.1.content.0",
        ],
        "too long": [],
        "empty compaction": ["removed ANT-COMPACT-1 messages.1.content.0"],
        "no message": ["refused GEN-SHAPE-1 messages.0"],
        "unknown role": ["refused GEN-SHAPE-1 messages.0"],
        "no block": ["refused GEN-SHAPE-1 messages.0.content.1"],
        "no JSON": ["refused GEN-JSON-1 messages.1.content.0.input.n"],
        "lone surrogate": ["rewritten GEN-JSON-1 messages.0.content.0.text"],
        "behind another role": ["moved ANT-PAIR-3 messages.3.content.0"],
        "orphan": ["to_text ANT-PAIR-4 messages.0.content.0"],
        "two different results": ["merged ANT-PAIR-5 messages.2.content.1"],
        "one id for two calls": ["renamed ANT-ID-2 messages.1.content.1"],
        "no id": [
            "renamed ANT-ID-1 messages.1.content.0",
            "inserted ANT-PAIR-1 messages.1.content.0",
        ],
        "input as text and as nothing": [
            "rewritten ANT-ID-3 messages.1.content.0",
            "rewritten ANT-ID-3 messages.1.content.1",
            "rewritten ANT-ID-3 messages.1.content.2",
            "inserted ANT-PAIR-1 messages.1.content.2",
        ],
        "long name": ["renamed ANT-NAME-1 messages.1.content.0"],
        "marker on an empty text": ["removed ANT-EMPTY-1 messages.1.content.1"],
        "words in vain": ["deferred ANT-SRV-3 messages.2.content.1"],
        "words as content": ["refused GEN-SHAPE-1 messages.1"],
    },
    R: {
        "nothing": [],
        "open at the end": ["inserted OAI-PAIR-1 input.1"],
        "open before the user": ["inserted OAI-PAIR-1 input.1"],
        "open before a later turn": ["inserted OAI-PAIR-1 input.1"],
        "message beside an open call": ["inserted OAI-PAIR-1 input.1"],
        "orphan": ["to_text OAI-PAIR-2 input.1"],
        "before its call": ["moved OAI-PAIR-2 input.0"],
        "another family": ["rewritten OAI-PAIR-3 input.2"],
        "two outputs": ["removed OAI-PAIR-4 input.2"],
        "call_id again": ["renamed OAI-ID-4 input.2.call_id"],
        "keyed by id": ["rewritten OAI-SHELL-1 input.1"],
        "patch status": [
            "rewritten OAI-PATCH-1 input.0.status",
            "rewritten OAI-PATCH-1 input.1.status",
        ],
        "compaction": ["removed OAI-COMP-1 input.0", "moved OAI-COMP-1 input.1"],
        "open screen": ["removed OAI-CU-1 input.0"],
        "thought alone": ["removed OAI-REAS-1 input.1"],
        "thought at the end": ["removed OAI-REAS-1 input.1"],
        "cut seal": ["removed OAI-REAS-3 input.0"],
        "id twice": ["removed OAI-ID-1 input.1"],
        "wrong beginnings": ["removed OAI-ID-2 input.0.id", "removed OAI-ID-2 input.1.id"],
        "lengths": [
            "renamed OAI-ID-3 input.0.call_id",
            "renamed OAI-ID-3 input.2.call_id",
            "removed OAI-ID-3 input.4.id",
        ],
        "no call_id": ["inserted OAI-PAIR-1 input.0", "renamed OAI-ID-3 input.0.call_id"],
        "store false": [
            "removed OAI-STORE-1 input.0",
            "removed OAI-STORE-1 input.1.id",
            "removed OAI-STORE-1 input.3",
        ],
        "hosted in progress": ["removed OAI-HOST-1 input.0"],
        "undecided": ["removed OAI-MCP-1 input.0"],
        "undecided at the end": ["removed OAI-MCP-1 input.1"],
        "decided twice and never asked": ["removed OAI-MCP-1 input.2", "removed OAI-MCP-1 input.3"],
        "program lost": ["removed OAI-PROG-1 input.0"],
        "program gone": ["removed OAI-PROG-1 input.0", "to_text OAI-PAIR-2 input.1"],
        "program status": ["rewritten OAI-PROG-1 input.1.status"],
        "types of fields": [
            "rewritten OAI-SHAPE-1 input.0.arguments",
            "rewritten OAI-SHAPE-1 input.1.output",
            "renamed OAI-SHAPE-1 input.2.name",
        ],
        "wrong parts": [
            "rewritten OAI-SHAPE-2 input.0.content.0",
            "rewritten OAI-SHAPE-2 input.1.content.0",
        ],
        "unknown fields": [
            "removed OAI-SHAPE-3 input.0.status",
            "removed OAI-SHAPE-3 input.1.parsed",
        ],
        "cut arguments": [
            "rewritten OAI-SHAPE-4 input.0.arguments",
            "rewritten OAI-SHAPE-4 input.2.arguments",
        ],
        "no item": ["refused GEN-SHAPE-1 input.0"],
        "no JSON": ["refused GEN-JSON-1 input.1.n"],
        "two different outputs": ["merged OAI-PAIR-4 input.2"],
        "call stored twice": ["removed OAI-ID-4 input.2"],
        "one id for two items": ["removed OAI-ID-2 input.1.id"],
        "hosted item of another provider": ["removed OAI-ID-2 input.0"],
        "thought before a lost search": [
            "removed OAI-REAS-1 input.0",
            "removed OAI-HOST-1 input.1",
        ],
        "output too long": ["rewritten OAI-SHAPE-1 input.1.output"],
        "empty name": ["renamed OAI-SHAPE-1 input.0.name"],
    },
    C: {
        "half answered": ["inserted CHAT-PAIR-1 messages.1.tool_calls.0"],
        "unanswered": ["inserted CHAT-PAIR-1 messages.1.tool_calls.0"],
        "steer between": ["moved CHAT-ORD-1 messages.4"],
        "orphan": ["to_text CHAT-PAIR-2 messages.1"],
        "of an earlier turn": ["removed CHAT-ID-1 messages.5"],
        "ids": [
            "removed CHAT-ID-1 messages.1.tool_calls.1",
            "renamed CHAT-ID-1 messages.1.tool_calls.2",
            "removed CHAT-ID-1 messages.3",
        ],
        "arguments and name": [
            "renamed CHAT-NAME-1 messages.1.tool_calls.0",
            "rewritten CHAT-ARG-1 messages.1.tool_calls.0",
        ],
        "nothing": ["removed CHAT-EMPTY-2 messages.1", "removed CHAT-EMPTY-2 messages.2"],
        "tool content": [
            "rewritten CHAT-TOOL-1 messages.2",
            "moved CHAT-TOOL-1 messages.3.content.1",
        ],
        "legacy open": [
            "rewritten CHAT-FN-1 messages.1.function_call",
            "inserted CHAT-PAIR-1 messages.1.function_call",
        ],
        "legacy unanswered": [
            "rewritten CHAT-FN-1 messages.1.function_call",
            "inserted CHAT-PAIR-1 messages.1.function_call",
        ],
        "legacy orphan": ["to_text CHAT-FN-1 messages.1"],
        "legacy mixed": [
            "rewritten CHAT-FN-1 messages.1.function_call",
            "inserted CHAT-PAIR-1 messages.1.function_call",
        ],
        "no message": ["refused GEN-SHAPE-1 messages.0"],
        "no JSON": ["refused GEN-JSON-1 messages.0.x_note"],
        "two different results": ["merged CHAT-ID-1 messages.3"],
        "before its call": ["moved CHAT-PAIR-2 messages.1"],
        "arguments as an object and as nothing": [
            "rewritten CHAT-ARG-1 messages.1.tool_calls.0",
            "rewritten CHAT-ARG-1 messages.3.tool_calls.0",
        ],
        "no name and no id": [
            "renamed CHAT-NAME-1 messages.1.tool_calls.0",
            "renamed CHAT-ID-1 messages.1.tool_calls.0",
        ],
    },
}
"""What `normalize` does about each shape with a violation: `kind rule path` of every change.

`refused` is a `HistoryError` instead.  No change: nothing truthful can be done, and a hint says so.
"""

OPEN: dict[Api, list[Any]] = {
    A: [HI, model(call("a"), call("b"))],
    R: [ASK, fc("a"), fc("b")],
    C: [HI, calls("a", "b")],
}
"""A last turn with two open calls."""

APIS = tuple(OPEN)
