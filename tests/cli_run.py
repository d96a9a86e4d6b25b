"""Runs the command in this process, with streams of its own."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from dataclasses import dataclass
from typing import Any
from unittest import mock

from stopkit.cli import main


@dataclass(frozen=True)
class Ran:
    """What one use of the command left."""

    code: int
    out: bytes
    err: str

    @property
    def records(self) -> list[Any]:
        """The objects that `--json` printed."""
        return [json.loads(line) for line in self.out.splitlines()]


def stopkit(*arguments: object, stdin: bytes = b"") -> Ran:
    """Run `stopkit` with these arguments."""
    out, err = io.BytesIO(), io.BytesIO()
    with (
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin))),
        contextlib.redirect_stdout(io.TextIOWrapper(out, encoding="utf-8")),
        contextlib.redirect_stderr(io.TextIOWrapper(err, encoding="utf-8")),
    ):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 1
        sys.stdout.flush()
        sys.stderr.flush()
        return Ran(code, out.getvalue(), err.getvalue().decode("utf-8"))


def call(call_id: str, name: str = "run") -> dict[str, Any]:
    """An Anthropic assistant message with one call."""
    block = {"type": "tool_use", "id": call_id, "name": name, "input": {"n": 1}}
    return {"role": "assistant", "content": [block]}


def result(call_id: str, text: str = "done") -> dict[str, Any]:
    """An Anthropic user message with one result."""
    block = {"type": "tool_result", "tool_use_id": call_id, "content": text}
    return {"role": "user", "content": [block]}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


CLEAN: list[dict[str, Any]] = [user("go"), call("toolu_1"), result("toolu_1")]
BROKEN: list[dict[str, Any]] = [user("go"), call("toolu_1"), user("and now?")]
"""The call has no result."""


def text(value: object) -> bytes:
    """JSON as nobody else would space it: rewritten bytes differ from it."""
    return json.dumps(value, separators=(", ", " : ")).encode()


def lines(*values: object, end: bytes = b"\n") -> bytes:
    return b"".join(text(value) + end for value in values)
