"""What the command understands, and the help that teaches it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NoReturn

from stopkit.history import Api

APIS: Final[tuple[Api, ...]] = ("anthropic.messages", "openai.responses", "openai.chat")

_ABOUT: Final = """\
Check and repair the histories of agents: what an API would refuse, and a history it accepts, with
an account of every change."""

_EXIT: Final = """\
exit codes:
  0    nothing wrong, or repaired
  1    check found violations
  2    something could not be read or written, or the command was used wrongly (with several
       inputs the rest is done all the same)
  130  interrupted; no file is left half-written
"""

_FORMATS: Final = """\
what can be read (told apart by what is inside, and said on standard error):
  a JSON list of messages or items, or a whole request body; its other fields (model, thinking,
      tools, store, ...) make conditional rules exact
  JSON lines, one message a line or one conversation a line
  a session file of Claude Code, a rollout of Codex
An object may carry `evidence` beside its messages: what became of a call, by its id,
  {"toolu_1": {"status": "stopped", "cause": "user", "output": "so far", "key": "op_x"}}
  status: running placeholder succeeded failed denied not_started stopped unknown
"""

_MAIN_EPILOG: Final = f"""\
examples:
  stopkit check chat.json                     what would the API refuse, and where?
  stopkit normalize chat.json > fixed.json    a history the API accepts; the account on the terminal
  stopkit normalize corpus.jsonl --in-place   repair a corpus, keeping a backup
`stopkit check --help` and `stopkit normalize --help` tell more.

{_EXIT}"""

_CHECK_EPILOG: Final = f"""\
examples:
  stopkit check chat.json
  stopkit check --api openai.chat corpus.jsonl --field conversation
  stopkit check session.jsonl --json | jq .violations

--json prints one object for each conversation, in the order of the input:
  {{"valid", "sendable", "violations": [{{"rule", "path", "message"}}]}}
`valid`: the history is well-formed so far.  `sendable`: a request may carry it as it is.

{_FORMATS}
{_EXIT}"""

_NORMALIZE_EPILOG: Final = f"""\
examples:
  stopkit normalize chat.json > fixed.json
  stopkit normalize corpus.jsonl --out repaired/ --jobs 4
  stopkit normalize corpus.jsonl --in-place            # backup: corpus.jsonl.bak
  stopkit normalize ~/.claude/projects/x/ --out api/   # session files become request bodies
  stopkit normalize body.json --evidence known.json --json | jq .changes

where the repaired history goes:
  without --out, --in-place or --json: to standard output, in the form it came in
  --out DIR    files of the same names below DIR
  --in-place   over the input, atomically, with a backup beside it (<name>.bak, then .bak.2, ...);
               plain JSON and JSON lines only.  Untouched lines keep their bytes
A session file or rollout is not rewritten: its history comes out as a request body.
Rows of a corpus that cannot be read go to <name>.rejects.jsonl beside what is written, each with
its line and the reason.  --in-place keeps them where they are, elsewhere they are left out.

--json prints one object for each conversation, in the order of the input:
  {{"api", "history",
   "changes": [{{"kind", "rule", "path", "call_id", "outcome", "note", "removed"}}],
   "outcomes": [{{"call_id", "occurrence", "name", "status", "synthetic", "effects"}}],
   "pending": [...], "sendable", "hints": [{{"code", "note", "path"}}]}}

{_FORMATS}
{_EXIT}"""


@dataclass(frozen=True, slots=True)
class Options:
    """One use of the command."""

    action: Literal["check", "normalize"]
    inputs: tuple[str, ...]
    api: Api | None = None
    field: str | None = None
    json: bool = False
    evidence: str | None = None
    live: Literal["close", "keep"] = "close"
    out: str | None = None
    in_place: bool = False
    rejects: str | None = None
    jobs: int = 1


def parse(arguments: Sequence[str]) -> Options:
    """The options of a command line.

    Raises:
        SystemExit: 0 after `--help` and `--version`, 2 for a wrong use.
    """
    given = vars(_parser().parse_args(arguments))
    given["inputs"] = tuple(given["inputs"])
    return Options(**given)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n{self.prog} --help shows how it is used\n")


class _Version(argparse.Action):
    """Reads the version only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"stopkit {version('stopkit')}")
        except PackageNotFoundError:
            print("stopkit, used from a source tree that is not installed")
        parser.exit(0)


def _parser() -> argparse.ArgumentParser:
    plain = argparse.RawDescriptionHelpFormatter
    parser = _Parser(
        prog="stopkit",
        description=_ABOUT,
        epilog=_MAIN_EPILOG,
        formatter_class=plain,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version",
        action=_Version,
        nargs=0,
        default=argparse.SUPPRESS,
        help="show the version and exit",
    )
    commands = parser.add_subparsers(dest="action", metavar="COMMAND", required=True)

    check = commands.add_parser(
        "check",
        help="say what the API would refuse, and where",
        description="Say what the API would refuse, and where. Nothing is written.",
        epilog=_CHECK_EPILOG,
        formatter_class=plain,
        allow_abbrev=False,
    )
    check.add_argument("inputs", nargs="+", metavar="FILE", help="a file, a folder, or - (stdin)")
    _add_common(check)

    normalize = commands.add_parser(
        "normalize",
        help="repair histories, and account for every change",
        description="Repair histories so that the API accepts them, and account for every change.",
        epilog=_NORMALIZE_EPILOG,
        formatter_class=plain,
        allow_abbrev=False,
    )
    normalize.add_argument(
        "inputs", nargs="+", metavar="FILE|DIR|-", help="a file, a folder, or - (stdin)"
    )
    _add_common(normalize)
    normalize.add_argument(
        "--evidence",
        metavar="FILE",
        help="JSON with what is known of calls, by call id; it wins over what the input says",
    )
    normalize.add_argument(
        "--live",
        choices=("close", "keep"),
        default="close",
        help="close: the history is at rest, open calls get an answer (default); "
        "keep: the last turn's open calls may still be at work and stay open",
    )
    target = normalize.add_mutually_exclusive_group()
    target.add_argument("--out", metavar="DIR", help="write files of the same names below DIR")
    target.add_argument(
        "--in-place",
        action="store_true",
        help="write over the input, atomically, keeping a backup",
    )
    normalize.add_argument(
        "--rejects",
        metavar="FILE",
        help="where rows that cannot be read go (default: <name>.rejects.jsonl beside what is "
        "written)",
    )
    return parser


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--api", choices=APIS, help="the API the history is written for (default: as detected)"
    )
    parser.add_argument(
        "--field",
        metavar="NAME",
        help="the field of each object that holds the history (default: messages or input)",
    )
    parser.add_argument(
        "--json", action="store_true", help="one JSON object a conversation on standard output"
    )
    parser.add_argument(
        "--jobs", type=_count, default=1, metavar="N", help="worker processes (default: 1)"
    )


def _count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of processes from 1 on")
    return number
