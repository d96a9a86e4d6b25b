"""Histories that make a repair slow: each asks for a walk over the same thing again and again.

A shape has about `k` messages or items, so a linear repair takes four times as long at four times
the `k`.
"""

from __future__ import annotations

from typing import Final

from bench.generate import Api, Item, history, parsed

USER_RUN: Final = "a run of k user messages"
ONE_EACH: Final = "k/2 parallel calls, one result per message"
NONE_ANSWERED: Final = "k/2 parallel calls, none answered"
UNANSWERED: Final = "every call unanswered"
LATE: Final = "a late result at the tail"
ALL_LATE: Final = "every result behind the last turn"
REUSED: Final = "one call id in every turn, every second result missing"
COPIES: Final = "k results for one call"
REASONING: Final = "a run of k reasoning items before an open call"
PROGRAMS: Final = "k/2 programs without output"


def shapes(api: Api, k: int) -> dict[str, list[Item]]:
    """Every shape of the format, by name, as a JSON parser gives it."""
    made = {
        "anthropic.messages": _anthropic,
        "openai.chat": _chat,
        "openai.responses": _responses,
    }[api](k)
    return {name: parsed(items) for name, items in made.items()}


def _anthropic(k: int) -> dict[str, list[Item]]:
    def user(*blocks: Item) -> Item:
        return {"role": "user", "content": list(blocks)}

    def assistant(*blocks: Item) -> Item:
        return {"role": "assistant", "content": list(blocks)}

    def text(words: str) -> Item:
        return {"type": "text", "text": words}

    def use(call_id: str) -> Item:
        return {"type": "tool_use", "id": call_id, "name": "f", "input": {}}

    def result(call_id: str, words: str = "done") -> Item:
        return {"type": "tool_result", "tool_use_id": call_id, "content": words}

    base = history("anthropic.messages", k, 0)
    is_result = [message["content"][0]["type"] == "tool_result" for message in base]
    results = [message for message, yes in zip(base, is_result, strict=True) if yes]
    open_turns = [message for message, yes in zip(base, is_result, strict=True) if not yes]
    calls = [f"toolu_{n}" for n in range(k // 2)]
    reused: list[Item] = []
    for n in range(k // 4):
        reused += [user(text(f"go {n}")), assistant(use("toolu_same"))]
        reused.append(user(text("on") if n % 2 else result("toolu_same", f"done {n}")))
        reused.append(assistant(text(f"answer {n}")))
    return {
        USER_RUN: [user(text(f"line {n}")) for n in range(k)],
        ONE_EACH: [
            user(text("go")),
            assistant(*map(use, calls)),
            *(user(result(call)) for call in calls),
        ],
        NONE_ANSWERED: [user(text("go")), assistant(*map(use, calls)), user(text("and?"))],
        UNANSWERED: open_turns,
        LATE: [
            *base,
            user(text("go")),
            assistant(use("toolu_tail")),
            user(text("wait")),
            user(result("toolu_tail")),
        ],
        ALL_LATE: [*open_turns, *results],
        REUSED: reused,
        COPIES: [
            user(text("go")),
            assistant(use("toolu_one")),
            *(user(result("toolu_one", f"copy {n}")) for n in range(k)),
        ],
    }


def _chat(k: int) -> dict[str, list[Item]]:
    def user(words: str) -> Item:
        return {"role": "user", "content": words}

    def assistant(*calls: str) -> Item:
        made = [
            {"id": call, "type": "function", "function": {"name": "f", "arguments": "{}"}}
            for call in calls
        ]
        return {"role": "assistant", "content": None, "tool_calls": made}

    def tool(call_id: str, words: str = "done") -> Item:
        return {"role": "tool", "tool_call_id": call_id, "content": words}

    base = history("openai.chat", k, 0)
    results = [message for message in base if message["role"] == "tool"]
    open_turns = [message for message in base if message["role"] != "tool"]
    calls = [f"call_{n}" for n in range(k // 2)]
    reused: list[Item] = []
    for n in range(k // 4):
        reused += [user(f"go {n}"), assistant("call_same")]
        reused.append(user("on") if n % 2 else tool("call_same", f"done {n}"))
        reused.append({"role": "assistant", "content": f"answer {n}"})
    return {
        USER_RUN: [user(f"line {n}") for n in range(k)],
        ONE_EACH: [user("go"), assistant(*calls), *map(tool, calls)],
        NONE_ANSWERED: [user("go"), assistant(*calls), user("and?")],
        UNANSWERED: open_turns,
        LATE: [*base, user("go"), assistant("call_tail"), user("wait"), tool("call_tail")],
        ALL_LATE: [*open_turns, *results],
        REUSED: reused,
        COPIES: [
            user("go"),
            assistant("call_one"),
            *(tool("call_one", f"copy {n}") for n in range(k)),
        ],
    }


def _responses(k: int) -> dict[str, list[Item]]:
    def user(words: str) -> Item:
        return {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": words}],
        }

    def call(call_id: str) -> Item:
        return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"}

    def output(call_id: str, words: str = "done") -> Item:
        return {"type": "function_call_output", "call_id": call_id, "output": words}

    base = history("openai.responses", k, 0)
    results = [item for item in base if item["type"] == "function_call_output"]
    open_turns = [item for item in base if item["type"] != "function_call_output"]
    calls = [f"call_{n}" for n in range(k // 2)]
    reused: list[Item] = []
    for n in range(k // 3):
        reused += [user(f"go {n}"), call("call_same")]
        reused.append(user("on") if n % 2 else output("call_same", f"done {n}"))
    return {
        USER_RUN: [user(f"line {n}") for n in range(k)],
        ONE_EACH: [user("go"), *map(call, calls), *map(output, calls)],
        NONE_ANSWERED: [user("go"), *map(call, calls), user("and?")],
        UNANSWERED: open_turns,
        LATE: [*base, user("go"), call("call_tail"), user("wait"), output("call_tail")],
        ALL_LATE: [*open_turns, *results],
        REUSED: reused,
        COPIES: [
            user("go"),
            call("call_one"),
            *(output("call_one", f"copy {n}") for n in range(k)),
        ],
        REASONING: [
            user("go"),
            *({"type": "reasoning", "id": f"rs_{n}", "summary": []} for n in range(k)),
            call("call_open"),
            user("and?"),
        ],
        PROGRAMS: [
            user("go"),
            *(
                {"type": "program", "id": f"prog_{n}", "call_id": c, "code": "", "fingerprint": "f"}
                for n, c in enumerate(calls)
            ),
            user("and?"),
        ],
    }
