"""Stop a build: its workers, the daemon it left behind, and the log follower nobody thinks of.

A make-like build runs as one unit.  Two of its processes have left its session, one ignores
SIGTERM.  The process table before and after is read from /proc, not from the report.

    python examples/stop_a_build.py
"""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from stopkit.stop import StopPolicy
from stopkit.units import ProcessUnit, UnitReport

MARK = "STOPKIT_EXAMPLE"

BUILD = """
compile() { while :; do echo "cc $1.c"; sleep 0.2; done; }
compile parser & compile lexer &
sh -c 'trap "" TERM; while :; do sleep 0.2; done' linker &
setsid sh -c 'sleep 60 & echo $! > cached.pid; exit' cache-daemon >/dev/null 2>&1
touch build.log
setsid tail -f build.log >/dev/null 2>&1 &
while ! [ -s cached.pid ]; do sleep 0.05; done
echo "all workers are up"
wait
"""


async def main() -> None:
    console = Console(width=100, highlight=False)
    mark = secrets.token_hex(8)
    policy = StopPolicy(grace=1.0, verify_wait=2.0)
    with tempfile.TemporaryDirectory() as directory:
        build = ProcessUnit.shell(BUILD, cwd=directory, env={**os.environ, MARK: mark}, stop=policy)
        async with build:
            async for chunk in build.stream():
                if b"all workers are up" in chunk.data:
                    break
            console.print(processes("While it builds", mark))
            report = await build.stop("user", words="wrong branch")
        console.print(told(report))
        console.print(processes("After the stop", mark))


def processes(title: str, mark: str) -> Table:
    """What really runs with the mark in its environment."""
    table = Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
    for column in ("pid", "parent", "session", "command"):
        table.add_column(column, justify="left" if column == "command" else "right")
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
        except OSError:
            continue
        if f"{MARK}={mark}".encode() in environment.split(b"\0") and fields[0] != "Z":
            words = command.replace(b"\0", b" ").decode("utf-8", "replace").split()
            short = " ".join(words)
            short = short if len(short) < 60 else short[:57] + "..."
            table.add_row(str(pid), fields[1], fields[3], short)
    if not table.row_count:
        table.add_row("", "", "", "(nothing)")
    return table


def told(report: UnitReport) -> Table:
    facts = report.process
    assert facts is not None
    table = Table(
        title="\nThe report", title_justify="left", box=None, show_header=False, pad_edge=False
    )
    table.add_column(style="bold")
    table.add_column()
    words = report.cause.words if report.cause else ""
    table.add_row("outcome", f"{report.outcome.status} ({words}), effects {report.outcome.effects}")
    for number, name in ((15, "SIGTERM"), (9, "SIGKILL")):
        passes = [sent for sent in facts.signals if sent.signal == number]
        if passes:
            count = len({pid for sent in passes for pid in sent.pids})
            when = f"{passes[0].after:.2f} s after the start"
            table.add_row(name, f"to {count} processes in {len(passes)} passes, first {when}")
    table.add_row("members seen", str(facts.members_seen))
    table.add_row("held by", facts.containment)
    table.add_row("verified empty", facts.verified_empty)
    table.add_row("survivors", str(len(facts.survivors)))
    for output in facts.output:
        table.add_row(
            output.name,
            f"{output.kept} bytes kept, {output.dropped} dropped, "
            + ("complete" if output.complete else "not complete"),
        )
    table.add_row("descriptors", "released" if facts.descriptors_released else "held")
    return table


if __name__ == "__main__":
    asyncio.run(main())
