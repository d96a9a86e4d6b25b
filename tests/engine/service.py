"""A service over HTTP that counts writes by key, and the tools that use it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from stopkit.operation import Absent, Done
from stopkit.tool import ToolContext, tool


class Counting:
    """Runs in a thread of the test; `by_key` and `by_what` are what it was made to do."""

    def __init__(self):
        self.by_key = Counter()
        self.by_what = Counter()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                asked = parse_qs(urlsplit(self.path).query)
                outer.by_key[asked["key"][0]] += 1
                outer.by_what[asked["what"][0]] += 1
                self.answer({"done": True})

            def do_GET(self):
                asked = parse_qs(urlsplit(self.path).query)
                self.answer({"done": outer.by_key[asked["key"][0]] > 0})

            def answer(self, value):
                body = json.dumps(value).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Connection", "close")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_exc):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


async def ask(port, method, path):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    await writer.drain()
    reply = await reader.read()
    writer.close()
    await writer.wait_closed()
    return json.loads(reply.partition(b"\r\n\r\n")[2])


def tools_of(port):
    async def status(key):
        found = await ask(port, "GET", f"/status?key={key}")
        return Done("written", f"the service has {key}") if found["done"] else Absent()

    @tool(effect="write", status=status)
    async def write(ctx: ToolContext, what: str) -> str:
        await ctx.dispatched()
        await ask(port, "POST", f"/write?key={ctx.key}&what={what}")
        return "written"

    @tool(effect="read")
    async def look(what: str) -> str:
        return f"looked at {what}"

    return [write, look]
