"""A small agent with a loop of its own, stopped in the middle of a write whose reply is lost.

Run it: `python examples/own_loop.py`.  No key, no network beyond this machine, a few seconds.

It reads a file, writes an invoice over HTTP (the service books it and hangs), and counts in a slow
function.  Then somebody presses Stop.  The report says what is known; the service is asked what
became of the invoice; the run is resumed, and there is exactly one invoice.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stopkit import (
    Absent,
    Done,
    RunReport,
    RunScope,
    SqlStore,
    StopPolicy,
    ThreadContext,
    Tool,
    ToolCall,
    ToolContext,
    tool,
)


class InvoiceService:
    """Books what it is sent, by key.  Its first reply never comes."""

    def __init__(self) -> None:
        self.booked: dict[str, str] = {}
        self.writes = 0
        self.port = 0
        self.written = asyncio.Event()
        self.closing = asyncio.Event()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method, path, _ = (await reader.readline()).decode().split()
        while (await reader.readline()).strip():
            pass
        _, key, *what = path.split("/")[1:]
        try:
            if method == "POST":
                self.writes += 1
                self.booked[key] = what[0]
                self.written.set()
                if self.writes == 1:
                    await self.closing.wait()
            body = json.dumps({"booked": self.booked.get(key)}).encode()
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            await writer.drain()
        finally:
            writer.close()

    async def ask(self, method: str, path: str) -> str | None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            reply = (await reader.read()).partition(b"\r\n\r\n")[2]
        finally:
            writer.close()
        booked: str | None = json.loads(reply)["booked"]
        return booked


def make_tools(service: InvoiceService, folder: Path) -> list[Tool]:
    @tool(effect="read")
    async def read_file(name: str) -> str:
        """Read a file."""
        return (folder / name).read_text()

    async def invoice_status(key: str) -> Done | Absent:
        booked = await service.ask("GET", f"/invoice/{key}")
        return Done(f"booked for {booked}", receipt=key) if booked else Absent()

    @tool(effect="write", status=invoice_status)
    async def book_invoice(ctx: ToolContext, customer: str) -> str:
        """Book an invoice."""
        await ctx.dispatched()
        return f"booked for {await service.ask('POST', f'/invoice/{ctx.key}/{customer}')}"

    @tool(effect="read")
    def count_slowly(ctx: ThreadContext, upto: int) -> str:
        """Count, in a plain function that looks at the signal."""
        for number in range(upto):
            ctx.checkpoint("counting")
            ctx.output(f"{number} ")
            time.sleep(0.02)
        return "counted"

    return [read_file, book_invoice, count_slowly]


@dataclass
class Reply:
    text: str
    calls: Sequence[ToolCall] = ()


class ScriptedModel:
    """Stands for a model: what it says depends on the results it is given."""

    async def create(self, messages: list[dict[str, object]]) -> Reply:
        await asyncio.sleep(0.01)
        results = [message for message in messages if message.get("role") == "tool"]
        done = {str(result["tool"]) for result in results if result["status"] == "succeeded"}
        if "read_file" not in done:
            return Reply("reading", [ToolCall("c1", "read_file", {"name": "order.txt"})])
        if "book_invoice" not in done:
            return Reply(
                "booking",
                [
                    ToolCall("c2", "book_invoice", {"customer": "ann"}),
                    ToolCall("c3", "count_slowly", {"upto": 10_000}),
                ],
            )
        return Reply("The invoice is booked.")


async def agent(scope: RunScope, tools: list[Tool], messages: list[dict[str, object]]) -> None:
    model = ScriptedModel()
    while True:
        await scope.save(messages)
        reply = await scope.model_request(lambda: model.create(messages))
        messages.append({"role": "assistant", "content": reply.text})
        if not reply.calls:
            print("  model:", reply.text)
            return
        outcomes = await scope.run_calls(reply.calls, tools)
        for call, outcome in zip(reply.calls, outcomes, strict=True):
            messages.append(
                {
                    "role": "tool",
                    "tool": call.name,
                    "status": outcome.status,
                    "content": outcome.output or outcome.reason,
                }
            )
        await scope.save(messages)
        messages.extend(dict(message) for message in scope.steers_due())


def show(report: RunReport) -> None:
    print(f"  run: {report.status} ({report.user_message})")
    for entry in report.calls:
        outcome = entry.outcome
        said = outcome.reason or (outcome.output or "").strip()[:40]
        print(f"  {entry.call.name}: {outcome.status}, effects {outcome.effects}: {said}")


async def main(folder: Path) -> int:
    (folder / "order.txt").write_text("one invoice for ann")
    service = InvoiceService()
    server = await asyncio.start_server(service.answer, "127.0.0.1", 0)
    service.port = server.sockets[0].getsockname()[1]
    store = SqlStore(f"sqlite:///{folder / 'runs.db'}")
    tools = make_tools(service, folder)

    print("1. The agent works, and somebody presses Stop while the invoice is under way.")
    scope = await store.open_run(session="demo", stop=StopPolicy(grace=0.5))

    async def press_stop() -> None:
        await service.written.wait()
        await store.request_stop(scope.id, "user", actor="ann", words="that is enough")

    pressing = asyncio.create_task(press_stop())
    async with scope:
        await agent(scope, tools, [{"role": "user", "content": "Book what the order says."}])
    await pressing
    stopped = scope.report
    show(stopped)

    print("2. Nobody knows about the invoice, so the service is asked by its key.")
    found = await store.reconcile(stopped.run, tools)
    print(f"  asked: {dict(found.answers)}")
    print(f"  run: {found.status}")

    print("3. The run is resumed: a second attempt, with what is known by now.")
    async with await store.resume_run(stopped.run) as second:
        messages: list[dict[str, object]] = [
            dict(message) for message in second.messages if isinstance(message, dict)
        ]
        for operation in await store.operations(stopped.run):
            for message in messages:
                if message.get("tool") == operation.name and operation.outcome is not None:
                    message["status"] = operation.outcome.status
                    message["content"] = operation.outcome.output
        await agent(second, tools, messages)
    show(second.report)

    print(f"Writes at the service: {service.writes}")
    store.close()
    service.closing.set()
    server.close()
    await server.wait_closed()
    return service.writes


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        if asyncio.run(main(Path(name))) != 1:
            raise SystemExit("there should be exactly one invoice")
