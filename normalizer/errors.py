"""What goes wrong before a history can be judged or repaired.

HistoryError (ValueError)      the input is no history of that API, or cannot be repaired truthfully
  UnknownApiError                   no such api
  EvidenceError                the evidence is not in the form that normalize takes
"""

from __future__ import annotations


class HistoryError(ValueError):
    """The input is not a history that can be repaired; nothing was changed and nothing is lost.

    `path` names the place in the API's own notation (`messages.3.content.1.input`), `rule` the
    rule of `stopkit.normalizer.RULES` it breaks, where one says so.
    """

    def __init__(self, message: str, *, path: str, rule: str | None = None) -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.message = message
        self.path = path
        self.rule = rule

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.path, self.rule))


def _rebuild(kind: type[HistoryError], message: str, path: str, rule: str | None) -> HistoryError:
    return kind(message, path=path, rule=rule)


class UnknownApiError(HistoryError):
    """`api` is none of the formats this package knows."""


class EvidenceError(HistoryError):
    """`evidence` is not `{call_id: Evidence}`; `path` is `evidence.<call id>`."""
