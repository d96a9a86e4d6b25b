"""Retries that know of the stop, the deadline and what a second try could do.

tenacity keeps the attempts and the waits.  What is added: a back-off ends at once when a stop is
asked for, no try begins after that or after the deadline, and an operation with effects is tried
again only under its key.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_random_exponential
from tenacity.stop import stop_after_attempt, stop_any, stop_base

from stopkit.errors import StopkitError
from stopkit.operation import EffectClass
from stopkit.signal import StopSignal

if TYPE_CHECKING:
    from tenacity.wait import wait_base

T = TypeVar("T")

DEFAULT_ATTEMPTS: Final = 5


def may_retry(effect: EffectClass, *, key: str | None, stopped: bool) -> bool:
    """Whether a second try is safe, by effect class.

    While a run is being stopped, only clean-up is tried again.
    """
    if stopped:
        return effect == "cleanup"
    return effect in ("read", "cleanup") or key is not None


class _Deadline(stop_base):
    """Ends the tries when nothing remains."""

    def __init__(self, signal: StopSignal, effect: EffectClass) -> None:
        self._signal = signal
        self._effect = effect

    def __call__(self, retry_state: RetryCallState) -> bool:
        return self._effect != "cleanup" and self._signal.remaining() <= 0


async def retry(
    function: Callable[[], Awaitable[T]],
    *,
    signal: StopSignal,
    effect: EffectClass,
    key: str | None = None,
    attempts: int = DEFAULT_ATTEMPTS,
    wait: wait_base | None = None,
    on: Callable[[BaseException], bool] | type[BaseException] = Exception,
) -> T:
    """Call `function` until it returns, at most `attempts` times.

    `wait` is tenacity's (seconds; exponential with jitter by default), cut to what remains of the
    deadline.  `on` says which errors are worth another try; stopkit's own never are, nor is a
    cancellation or an exit.  A write without a `key` is tried once: its error may hide an effect.

    Raises:
        StopRequested: if a stop is asked for before the first try or during a back-off.
        Exception: the last try's own error.

    Cancellation: passes through, at a try and at a back-off.
    """
    if effect != "cleanup":
        signal.checkpoint("retry")

    def worth(error: BaseException) -> bool:
        # A cancellation or an exit is no error, whatever `on` says of it.
        if isinstance(error, StopkitError) or not isinstance(error, Exception):
            return False
        fits = isinstance(error, on) if isinstance(on, type) else on(error)
        return fits and may_retry(effect, key=key, stopped=signal.requested)

    async def sleep(seconds: float) -> None:
        if effect == "cleanup" and signal.requested:
            # Its own deadline, the stop's, bounds it; the run's signal is set already.
            await StopSignal().sleep(seconds)
        else:
            await signal.sleep(seconds)

    retrying = AsyncRetrying(
        sleep=sleep,
        stop=stop_any(stop_after_attempt(attempts), _Deadline(signal, effect)),
        wait=wait or wait_random_exponential(multiplier=0.2, max=20),
        retry=retry_if_exception(worth),
        reraise=True,
    )
    return await retrying(function)
