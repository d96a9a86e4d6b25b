"""Makes docs/rules.md: the table of rules with the tests that hold each.

    python tests/rules_table.py > docs/rules.md

A test names the rules it holds with `@pytest.mark.rule("ANT-PAIR-1", ...)`; the tables of shapes
name theirs in what they expect.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import shapes

from stopkit.normalizer import RULES, Rule

TESTS = Path(__file__).parent

HEAD = """\
# Rules of the histories

Made from `stopkit.normalizer.RULES` by `make docs`; do not edit.

`check` tells every violation with its rule, path, message and grade. `normalize` names the rule of
every change.

**Grade**: what a rule rests on, the strongest first.

| grade | rests on |
|---|---|
| D | official documentation or specification |
| M | measured against the live API |
| R | reported by users, with the error text |
| C | coded in a maintained library |
| I | inferred |

**Scope**: what a violation breaks.

| scope | breaks |
|---|---|
| prefix | the history itself: no request can carry it |
| send | only the request that would carry it now: a call of the last turn is open, or the end is \
the model's |
| normalizer | nothing in a history can show it; `normalize` is held to it instead |
| request | a condition on the rest of the request, told as a hint |
| never | nothing: a common belief that is not a rule |

**Defaults**: what is assumed where `request` does not say.

| not given | means |
|---|---|
| `model` | it may be any. An end that is the model's is not sendable (ANT-END-1), its white space \
is not judged (ANT-END-2), system messages are judged by place and content only (ANT-SYS-1), and \
thinking may be bound to its prefix (ANT-THINK-6). A name that is not understood means the same. |
| `thinking` | neither enabled nor disabled: ANT-THINK-3 and ANT-THINK-5 are not judged |
| `tools` | not known: no name is unknown (ANT-SYS-2, ANT-SRV-8); an empty list says that there \
are none (ANT-TOOLS-1) |
| `system` | no cache marker outside the messages (ANT-CACHE-1) |
| `container` | there is none (ANT-SRV-6) |
| `store` | true: ids of stored items are good (OAI-STORE-1) |
| `previous_response_id`, `conversation`, `prompt` | none: the input is the whole history \
(OAI-PAIR-2, OAI-CHAIN-1, OAI-SHAPE-4) |
| `evidence` | nothing is known: the outcome of a call without a result is `unknown` |
| `live` | `close`: the history is at rest |
"""

GROUPS = (
    ("Any API", ("GEN-", "OUT-")),
    ("Anthropic Messages", ("ANT-",)),
    ("OpenAI Responses", ("OAI-",)),
    ("OpenAI Chat", ("CHAT-",)),
)


def marked_tests() -> dict[str, list[str]]:
    """The tests that hold each rule, as `file::function`, in the order of files and lines.

    Raises:
        ValueError: a mark names what is no rule.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(TESTS.glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                for rule in _marks(node):
                    if rule not in RULES:
                        raise ValueError(f"{path.name}::{node.name} names no rule: {rule}")
                    found[rule].append(f"{path.name}::{node.name}")
    return found


def _marks(function: ast.FunctionDef) -> Iterator[str]:
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.rule":
            yield from (ast.literal_eval(argument) for argument in decorator.args)


def shapes_of() -> dict[str, list[str]]:
    """The shapes of tests/shapes.py that break each rule, by name."""
    found: dict[str, list[str]] = defaultdict(list)
    for _, rows in shapes.SHAPES:
        for name, _, _, expected in rows:
            for rule in {entry.split()[0] for entry in expected}:
                if name not in found[rule]:
                    found[rule].append(name)
    return found


def page() -> str:
    """The text of docs/rules.md."""
    tests, shown = marked_tests(), shapes_of()
    parts = [HEAD]
    for title, prefixes in GROUPS:
        rules = [rule for rule in RULES.values() if rule.id.startswith(prefixes)]
        parts.append(f"\n## {title}\n")
        parts += [_section(rule, tests[rule.id], shown[rule.id]) for rule in rules]
    return "".join(parts)


def _section(rule: Rule, tests: list[str], shown: list[str]) -> str:
    lines = [
        f"\n### {rule.id}\n",
        f"{rule.says}\n",
        f"- **Grade** {rule.grade} · **scope** {rule.scope}",
        f"- **Check**: {rule.when}",
        f"- **Repair**: {rule.repair}",
    ]
    if rule.never:
        lines.append(f"- **Never**: {rule.never}")
    if rule.error:
        lines.append(f"- **Error**: `` {rule.error} ``")
    if shown:
        lines.append(f"- **Shapes**: {', '.join(shown)}")
    if tests:
        lines.append("- **Tests**: " + ", ".join(f"`{test}`" for test in tests))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
