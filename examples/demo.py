"""Check and repair recorded agent sessions, offline.

The files in examples/transcripts were written by the real Claude Code and Codex programs, stopped
or killed in the middle of their work.  For each: what the API would refuse, what became of every
call, and a history that can go on.  For one of them, in full: before, after, and why.

    python examples/demo.py
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from stopkit.normalizer import Normalized, check, normalize
from stopkit.normalizer.transcripts import Transcript, load

HERE = Path(__file__).parent
TRANSCRIPTS = HERE / "transcripts"
IN_FULL = TRANSCRIPTS / "codex" / "kill_mid_command.jsonl"


def main() -> None:
    console = Console(width=110, soft_wrap=False, highlight=False)
    console.print("[bold]Recorded sessions[/], checked and repaired\n")
    console.print(overview(sorted(TRANSCRIPTS.glob("*/*.jsonl"))))
    in_full(console, IN_FULL)


def overview(paths: list[Path]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("file", "before", "what became of its calls", "after"):
        table.add_column(title, overflow="fold")
    for path in paths:
        transcript = load(path)
        before = check(transcript.history, api=transcript.api)
        result = repaired(transcript)
        after = check(result.history, api=transcript.api)
        rules = Counter(violation.rule for violation in before.violations)
        table.add_row(
            f"{path.parent.name}/{path.stem}",
            ", ".join(f"{rule} x{count}" for rule, count in rules.items()) or "fine",
            ", ".join(
                f"{count} {status}"
                for status, count in Counter(o.status for o in result.outcomes).items()
            )
            or "no calls",
            "valid" if after.valid else "BROKEN",
        )
    return table


def in_full(console: Console, path: Path) -> None:
    transcript = load(path)
    result = repaired(transcript)
    console.print(f"\n[bold]One of them in full: {path.parent.name}/{path.stem}[/]")
    console.print(
        "Three commands in one response; the third had finished and the second was running when "
        "the program was killed.\n"
    )
    console.print("[bold]Before[/]: what the API would say")
    for violation in check(transcript.history, api=transcript.api).violations:
        console.print(f"  {violation.path}: {violation.message}", markup=False)
    console.print("\n[bold]Why[/]: what was done, and what it rests on")
    for change in result.changes:
        console.print(f"  {change.kind} {change.call_id}: {change.note}", markup=False)
    for outcome in result.outcomes:
        rests_on = "; ".join(outcome.outcome.evidence) or "nothing: nobody knows"
        console.print(f"  {outcome.call_id}: {outcome.status} ({rests_on})", markup=False)
    console.print("\n[bold]After[/]: the results that the next request carries")
    for item in result.history:
        if isinstance(item, dict) and str(item.get("type")).endswith("_output"):
            words = json.dumps(item["output"], ensure_ascii=False)
            console.print(f"  {item['call_id']}  {words}", markup=False, overflow="fold")


def repaired(transcript: Transcript) -> Normalized[object]:
    return normalize(transcript.history, api=transcript.api, evidence=transcript.evidence)


if __name__ == "__main__":
    main()
