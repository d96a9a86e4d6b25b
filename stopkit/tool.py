"""`@tool`: a function with its schema, its effect class, and how to find out, cancel and undo."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, Final, Literal, Protocol, TypeAlias, cast, get_type_hints, overload

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError, create_model

from stopkit.errors import ToolRegistrationError
from stopkit.operation import EFFECT_CLASSES, EffectClass, Operation, StatusAnswer
from stopkit.signal import StopSignal

ToolFunction: TypeAlias = Callable[..., object]
Arguments: TypeAlias = Mapping[str, object]
KeyOf: TypeAlias = Callable[[Arguments], str]
StatusOf: TypeAlias = Callable[[str], Awaitable[StatusAnswer]]
CancelOf: TypeAlias = Callable[[str], Awaitable[None]]
CompensateOf: TypeAlias = Callable[[Operation], Awaitable[str]]
Approve: TypeAlias = bool | Callable[[Arguments], bool]
FilesOf: TypeAlias = Callable[[Arguments], Iterable[str | PathLike[str]]]


class Unsaid:
    """The default of what a declaration must say aloud."""


UNSAID: Final = Unsaid()


class Ports(Protocol):
    """What a context reaches of the scope that runs its call."""

    def dispatch(self) -> Future[None]: ...
    def committed(self) -> None: ...
    def paused(self, point: Literal["before_dispatch", "after_dispatch"]) -> Awaitable[None]: ...
    def output(self, text: str) -> None: ...
    def receipt(self, text: str | None, provider_request_id: str | None) -> None: ...


class _Context:
    def __init__(self, *, signal: StopSignal, key: str, run: str, attempt: int, ports: Ports):
        self.signal = signal
        self.key = key
        self.run = run
        self.attempt = attempt
        self._ports = ports

    def remaining(self) -> float:
        """Seconds this call may still take; infinite where nothing bounds it."""
        return self.signal.remaining()

    def checkpoint(self, where: str = "") -> None:
        """Put it before each step that has an effect.

        Raises:
            StopRequested: once a stop is asked for.
        """
        self.signal.checkpoint(where)

    def output(self, text: str) -> None:
        """Keep output as it comes; it is in the outcome even if the call is cut."""
        self._ports.output(text)

    def receipt(self, text: str | None = None, *, provider_request_id: str | None = None) -> None:
        """Keep proof that the effect happened, as the service gave it."""
        self._ports.receipt(text, provider_request_id)


class ToolContext(_Context):
    """What an async tool is given as its first argument, if it is annotated so.

    `key` is the operation's idempotency key: give it to the service.
    """

    async def dispatched(self) -> None:
        """Say: the next thing I do may have its effect.  Await it right before that.

        Raises:
            StopRequested: if a stop came first; then nothing may be sent.
            NotRecorded: if that could not be written down; then nothing may be sent.
        """
        # Not at the top: `import stopkit` reaches this module, and does not need an event loop.
        import asyncio

        await self._ports.paused("before_dispatch")
        self.signal.checkpoint("dispatch")
        await asyncio.wrap_future(self._ports.dispatch())
        # Written, but not sent: a stop that came meanwhile still finds nothing done.
        self.signal.checkpoint("dispatch")
        self._ports.committed()
        await self._ports.paused("after_dispatch")

    async def sleep(self, seconds: float) -> None:
        """As `StopSignal.sleep`."""
        await self.signal.sleep(seconds)


class ThreadContext(_Context):
    """What a plain function is given; it runs in a thread, which nothing can end."""

    def dispatched(self) -> None:
        """As `ToolContext.dispatched`."""
        self.signal.checkpoint("dispatch")
        self._ports.dispatch().result()
        self.signal.checkpoint("dispatch")
        self._ports.committed()

    def sleep(self, seconds: float) -> None:
        """As `StopSignal.sleep_in_thread`."""
        self.signal.sleep_in_thread(seconds)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tool:
    """A tool as the door runs it.  `schema` is the JSON schema of its arguments."""

    name: str
    description: str
    schema: Mapping[str, JsonValue]
    function: ToolFunction
    effect: EffectClass
    key: KeyOf | None = None
    retention: float | None = None
    status: StatusOf | None = None
    cancel: CancelOf | None = None
    compensate: CompensateOf | None = None
    approve: Approve = False
    timeout: float | None = None
    files: FilesOf | None = None
    in_thread: bool = False
    takes_context: bool = False
    model: type[BaseModel] | None = field(default=None, repr=False)

    @property
    def says_when(self) -> bool:
        """True where the tool can say when it commits; else its start counts as that."""
        return self.takes_context

    def bind(self, arguments: Arguments) -> dict[str, object]:
        """The arguments as the function takes them.

        Raises:
            ValueError: where they do not fit the schema, in words for the model.
        """
        if self.model is None:
            return {"arguments": arguments}
        try:
            bound = self.model.model_validate(dict(arguments))
        except ValidationError as error:
            faults = "; ".join(
                f"{'.'.join(str(part) for part in fault['loc']) or 'arguments'}: {fault['msg']}"
                for fault in error.errors(include_url=False)
            )
            raise ValueError(faults) from error
        return {name: getattr(bound, name) for name in type(bound).model_fields}

    def asks_first(self, arguments: Arguments) -> bool:
        """Whether somebody has to approve this call."""
        return self.approve(arguments) if callable(self.approve) else self.approve


Tools: TypeAlias = Sequence[Tool] | Mapping[str, Tool]


def by_name(tools: Tools) -> Mapping[str, Tool]:
    """Tools by their names.

    Raises:
        ToolRegistrationError: if two share one.
    """
    if isinstance(tools, Mapping):
        return tools
    table = {tool.name: tool for tool in tools}
    if len(table) != len(tools):
        raise ToolRegistrationError("two tools have the same name")
    return table


@overload
def tool(
    *,
    effect: EffectClass,
    name: str | None = None,
    description: str | None = None,
    key: KeyOf | None = None,
    retention: float | None = None,
    status: StatusOf | Unsaid | None = UNSAID,
    cancel: CancelOf | None = None,
    compensate: CompensateOf | None = None,
    approve: Approve = False,
    timeout: float | None = None,
    files: FilesOf | None = None,
) -> Callable[[ToolFunction], Tool]: ...


@overload
def tool(
    *,
    effect: EffectClass,
    schema: Mapping[str, JsonValue],
    function: ToolFunction,
    name: str | None = None,
    description: str | None = None,
    key: KeyOf | None = None,
    retention: float | None = None,
    status: StatusOf | Unsaid | None = UNSAID,
    cancel: CancelOf | None = None,
    compensate: CompensateOf | None = None,
    approve: Approve = False,
    timeout: float | None = None,
    files: FilesOf | None = None,
) -> Tool: ...


def tool(
    *,
    effect: EffectClass,
    schema: Mapping[str, JsonValue] | None = None,
    function: ToolFunction | None = None,
    name: str | None = None,
    description: str | None = None,
    key: KeyOf | None = None,
    retention: float | None = None,
    status: StatusOf | Unsaid | None = UNSAID,
    cancel: CancelOf | None = None,
    compensate: CompensateOf | None = None,
    approve: Approve = False,
    timeout: float | None = None,
    files: FilesOf | None = None,
) -> Tool | Callable[[ToolFunction], Tool]:
    """Declare a tool, as a decorator, or from a raw `schema` and its `function`.

    The schema comes from the function's signature.  A first parameter annotated `ToolContext`
    (`ThreadContext` in a plain function) receives the context.  A function that goes with a raw
    schema takes the context and `arguments`.

    `effect`: `read` changes nothing; `write` does; `cleanup` may also start while a run is being
    stopped; `detached` starts work that is meant to outlive the run.
    `key`: a business key from the arguments, where the operation has one; else the ledger
    allocates it.  `retention`: seconds for which the service remembers a key, None for ever.
    `status`: asks the service what became of a key.  A write must give it, or say `status=None`:
    nobody can find out.
    `cancel`: asks the service to cancel a key.  `compensate`: undoes an operation.
    `approve`: whether a call waits for somebody's approval.  `timeout`: seconds, the tool's own.
    `files`: the files that a call may change; they are compared before and after.

    Raises:
        ToolRegistrationError: where the declaration leaves out what must be said, or does not fit
            together.
    """

    def declare(made: ToolFunction) -> Tool:
        return _declare(
            made,
            schema,
            name=name,
            description=description,
            effect=effect,
            key=key,
            retention=retention,
            status=status,
            cancel=cancel,
            compensate=compensate,
            approve=approve,
            timeout=timeout,
            files=files,
        )

    if schema is not None:
        if function is None:
            raise ToolRegistrationError("a raw schema needs the function that goes with it")
        return declare(function)
    return declare if function is None else declare(function)


def _declare(
    function: ToolFunction,
    schema: Mapping[str, JsonValue] | None,
    *,
    name: str | None,
    description: str | None,
    effect: EffectClass,
    key: KeyOf | None,
    retention: float | None,
    status: StatusOf | Unsaid | None,
    cancel: CancelOf | None,
    compensate: CompensateOf | None,
    approve: Approve,
    timeout: float | None,
    files: FilesOf | None,
) -> Tool:
    title = name or function.__name__
    in_thread = not inspect.iscoroutinefunction(function)
    context, parameters = _parameters(title, function, in_thread=in_thread)
    _refuse_what_does_not_fit(
        title,
        effect=effect,
        status=status,
        cancel=cancel,
        compensate=compensate,
        key=key,
        timeout=timeout,
        retention=retention,
        context=context,
    )
    model: type[BaseModel] | None = None
    if schema is None:
        model = _model(title, parameters)
        schema = cast("dict[str, JsonValue]", model.model_json_schema())
    elif [parameter.name for parameter, _ in parameters] != ["arguments"]:
        raise ToolRegistrationError(f"{title}: with a raw schema, it takes `arguments` alone")
    return Tool(
        name=title,
        description=description or inspect.getdoc(function) or "",
        schema=schema,
        function=function,
        effect=effect,
        key=key,
        retention=retention,
        status=None if isinstance(status, Unsaid) else status,
        cancel=cancel,
        compensate=compensate,
        approve=approve,
        timeout=timeout,
        files=files,
        in_thread=in_thread,
        takes_context=context,
        model=model,
    )


def _refuse_what_does_not_fit(
    title: str,
    *,
    effect: EffectClass,
    status: StatusOf | Unsaid | None,
    cancel: CancelOf | None,
    compensate: CompensateOf | None,
    key: KeyOf | None,
    timeout: float | None,
    retention: float | None,
    context: bool,
) -> None:
    if effect not in EFFECT_CLASSES:
        raise ToolRegistrationError(f"{title}: no such effect class: {effect!r}")
    changes = effect in ("write", "detached")
    if changes and isinstance(status, Unsaid):
        raise ToolRegistrationError(
            f"{title}: a {effect} gives its status check, or says status=None: nobody can find out"
        )
    given = {
        "status": None if isinstance(status, Unsaid) else status,
        "cancel": cancel,
        "compensate": compensate,
        "key": key,
        "retention": retention,
    }
    said = [what for what, value in given.items() if value is not None]
    if not changes and said:
        raise ToolRegistrationError(
            f"{title}: {', '.join(said)} belong to an operation with effects, not to a {effect}"
        )
    if changes and not context and key is None and (given["status"] or given["cancel"]):
        raise ToolRegistrationError(
            f"{title}: the service cannot know the key: take a context, or give key="
        )
    for what, seconds in (("timeout", timeout), ("retention", retention)):
        if seconds is not None and not 0 < seconds < float("inf"):
            raise ToolRegistrationError(f"{title}: {what} is a finite number of seconds")


_Parameter: TypeAlias = tuple[inspect.Parameter, object]


def _parameters(
    title: str, function: ToolFunction, *, in_thread: bool
) -> tuple[bool, list[_Parameter]]:
    """Whether the function takes a context, and its other parameters with their types."""
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise ToolRegistrationError(f"{title}: its annotations name nothing known: {error}") from (
            error
        )
    context = False
    parameters: list[_Parameter] = []
    for index, parameter in enumerate(inspect.signature(function).parameters.values()):
        hint = hints.get(parameter.name, UNSAID)
        if hint in (ToolContext, ThreadContext):
            fitting = ThreadContext if in_thread else ToolContext
            if index != 0 or hint is not fitting:
                raise ToolRegistrationError(
                    f"{title}: its context is the first parameter, a {fitting.__name__}"
                )
            context = True
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ToolRegistrationError(f"{title}: *{parameter.name} has no schema")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ToolRegistrationError(f"{title}: {parameter.name} cannot be given by its name")
        if hint is UNSAID:
            raise ToolRegistrationError(f"{title}: {parameter.name} has no type")
        parameters.append((parameter, hint))
    return context, parameters


def _model(title: str, parameters: Sequence[_Parameter]) -> type[BaseModel]:
    fields: dict[str, Any] = {
        parameter.name: (hint, ... if parameter.default is parameter.empty else parameter.default)
        for parameter, hint in parameters
    }
    try:
        return create_model(title, __config__=ConfigDict(extra="forbid"), **fields)
    except Exception as error:
        raise ToolRegistrationError(f"{title}: no schema from its signature: {error}") from error
