"""A real MCP server with tools that take their time.

    mcp_server.py stdio DIR
    mcp_server.py http DIR

Each tool notes in DIR what happened to it: `started`, `cancelled`, `finished`.  Over HTTP the port
is written to the file `port`.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import anyio
from mcp.server.mcpserver import MCPServer

NOTES = Path(sys.argv[2])
server = MCPServer("slow")


def note(word):
    (NOTES / word).touch()


async def until(word):
    while not (NOTES / word).exists():  # noqa: ASYNC110 - the test speaks by files
        await asyncio.sleep(0.01)


@server.tool()
async def echo(text: str) -> str:
    return text


@server.tool()
async def fail() -> str:
    raise ValueError("it went wrong")


@server.tool()
async def slow() -> str:
    """Ends when it is cancelled, or when `release` appears."""
    note("started")
    try:
        await until("release")
    except BaseException:
        note("cancelled")
        raise
    note("finished")
    return "slow but done"


@server.tool()
async def stubborn() -> str:
    """Goes on whatever it is told."""
    note("started")
    with anyio.CancelScope(shield=True):
        await until("release")
    note("finished")
    return "done all the same"


@server.tool()
async def daemon() -> str:
    """Leaves a process in a session of its own behind."""
    null = subprocess.DEVNULL
    subprocess.Popen(["/bin/sleep", "60"], start_new_session=True, stdout=null)  # noqa: ASYNC220
    return "left"


@server.tool()
async def die() -> str:
    note("started")
    os._exit(3)


def serve_http():
    import uvicorn

    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen(16)
    (NOTES / "port.tmp").write_text(str(sock.getsockname()[1]))
    (NOTES / "port.tmp").rename(NOTES / "port")
    app = server.streamable_http_app()
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[sock])


if __name__ == "__main__":
    if sys.argv[1] == "http":
        serve_http()
    else:
        server.run("stdio")
