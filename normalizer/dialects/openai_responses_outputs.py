"""The outputs of each call family: what they say, how one is made up, retyped or merged."""

from __future__ import annotations

import json
from typing import Any, Final

from stopkit.normalizer.dialects.openai_responses_shapes import BY_OUTPUT, Family, type_of
from stopkit.normalizer.wording import NO_RESULT, fold, made_up, read_outcome
from stopkit.outcome import Failed, Outcome, Stopped, Succeeded, Unknown

Item = dict[str, Any]

NO_EXIT_CODE: Final = -1
"""The exit code of a shell output that is made up: no process returns it."""
_PLAIN: Final = frozenset({"function_call_output", "custom_tool_call_output"})


def text_of(item: Item) -> str:
    """What an output says, as text: ours in full, a tool's own in its words or as JSON."""
    match type_of(item):
        case "function_call_output" | "custom_tool_call_output":
            return _joined(item.get("output"))
        case "local_shell_call_output":
            return _of_local_shell(str(item.get("output", "")))
        case "shell_call_output":
            return _of_shell(item.get("output") or [])
        case "apply_patch_call_output":
            return str(item.get("output") or "")
        case "program_output":
            return str(item.get("result", ""))
        case "tool_search_output":
            if item.get("status") == "incomplete" and not item.get("tools"):
                return made_up(Unknown(reason=NO_RESULT))
            return _json(item.get("tools"))
        case _:
            return ""


def is_error(item: Item) -> bool | None:
    """True where an output reports an error of the tool's own; None where it cannot say."""
    match item:
        case {"type": "apply_patch_call_output", "status": str(status)}:
            return status == "failed"
        case {"type": "shell_call_output", "output": [*_, {"outcome": {"type": "timeout"}}]}:
            return True
        case {"type": "shell_call_output", "output": [*_, {"outcome": {"exit_code": int(code)}}]}:
            return code != 0
        case _:
            return None


def comparable(item: Item) -> object:
    """What tells two outputs of one family apart."""
    kind = type_of(item)
    if kind in _PLAIN:
        return item.get("output", "")
    text = text_of(item)
    if read_outcome(text) is not None:
        return text
    fields = (
        ("output", "result", "tools", "status") if kind != "computer_call_output" else ("output",)
    )
    return _json({name: item[name] for name in fields if name in item})


def make(family: Family, call_id: str | None, call: Item, outcome: Outcome) -> Item:
    """A made-up output for a call of `family` that says `outcome`."""
    text = made_up(outcome)
    item: Item = {"type": family.output, "call_id": call_id}
    match family.output:
        case "local_shell_call_output":
            item["output"] = json.dumps({"stdout": "", "stderr": text}, ensure_ascii=False)
        case "shell_call_output":
            code = outcome.exit_code if isinstance(outcome, (Failed, Stopped)) else None
            ended = {"type": "exit", "exit_code": NO_EXIT_CODE if code is None else code}
            item["output"] = [{"stdout": "", "stderr": text, "outcome": ended}]
            item["status"] = "incomplete"
        case "apply_patch_call_output":
            item["status"] = "completed" if isinstance(outcome, Succeeded) else "failed"
            item["output"] = text
        case "tool_search_output":
            item |= {"tools": [], "status": "incomplete", "execution": "client"}
        case _:
            item["output"] = text
    if call.get("caller") is not None and family.call != "local_shell_call":
        item["caller"] = call["caller"]
    return item


def retyped(item: Item, family: Family) -> Item | None:
    """An output as one of another family, where its content carries over; else None."""
    output: Any
    match type_of(item):
        case "function_call_output" | "custom_tool_call_output":
            output = item["output"]
        case "computer_call_output" | "tool_search_output":
            return None
        case _:
            output = text_of(item)
    if family.output == "local_shell_call_output":
        output = output if isinstance(output, str) else _json(output)
    elif family.output not in _PLAIN:
        return None
    new: Item = {"type": family.output, "call_id": item.get("call_id"), "output": output}
    if item.get("caller") is not None and family.output in _PLAIN:
        new["caller"] = item["caller"]
    return new


def merged(first: Item, others: list[Item]) -> Item | None:
    """One output with all that several of one family recorded; None where no output holds two."""
    match type_of(first):
        case "function_call_output" | "custom_tool_call_output":
            outputs = [item["output"] for item in (first, *others)]
            if all(isinstance(output, str) for output in outputs):
                return {**first, "output": fold(outputs[0], outputs[1:])}
            parts: list[Item] = []
            for number, output in enumerate(outputs, start=1):
                if number > 1:
                    head = f"[stopkit: recorded result {number} of the same call]"
                    parts.append({"type": "input_text", "text": head})
                if isinstance(output, str):
                    parts.append({"type": "input_text", "text": output})
                else:
                    parts += output
            return {**first, "output": parts}
        case "local_shell_call_output":
            return {**first, "output": fold(first["output"], [item["output"] for item in others])}
        case "apply_patch_call_output":
            texts = [str(item.get("output") or "") for item in (first, *others)]
            return {**first, "output": fold(texts[0], texts[1:])}
        case "shell_call_output":
            return {**first, "output": [part for i in (first, *others) for part in i["output"]]}
        case _:
            return None


def media_of(item: Item) -> list[Item]:
    """The images and files of an output, as parts of a user message."""
    output = item.get("output")
    if isinstance(output, list) and type_of(item) in _PLAIN:
        return [part for part in output if part["type"] != "input_text"]
    if isinstance(output, dict):
        sources = {
            name: output[name] for name in ("image_url", "file_id") if output.get(name) is not None
        }
        return [{"type": "input_image", "detail": "auto", **sources}] if sources else []
    return []


def _joined(output: object) -> str:
    if isinstance(output, list):
        return "\n".join(
            part["text"]
            for part in output
            if isinstance(part, dict) and isinstance(part.get("text"), str)
        )
    return output if isinstance(output, str) else ""


def _of_local_shell(output: str) -> str:
    try:
        parsed = json.loads(output) if '"[stopkit ' in output else None
    except (ValueError, RecursionError):
        return output
    stderr = parsed.get("stderr") if isinstance(parsed, dict) and not parsed.get("stdout") else None
    return stderr if isinstance(stderr, str) and read_outcome(stderr) is not None else output


def _of_shell(parts: list[Any]) -> str:
    texts = [
        part[name]
        for part in parts
        if isinstance(part, dict)
        for name in ("stdout", "stderr")
        if isinstance(part.get(name), str) and part[name]
    ]
    return "\n".join(texts)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


__all__ = [
    "BY_OUTPUT",
    "NO_EXIT_CODE",
    "comparable",
    "is_error",
    "make",
    "media_of",
    "merged",
    "retyped",
    "text_of",
]
