"""Noting the calls of handlers: who was called with what, what it said, and for which delivery."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ruststream_kinesis.message import KinesisMessage
from ruststream_kinesis.testing.delivery import CAUSES, DELIVERY, Delivery, OneRun

if TYPE_CHECKING:
    from ruststream_kinesis.handlers import Handler
    from ruststream_kinesis.settlement import Counters

__all__ = ["SubscriberCalls", "noted"]

Calls = list["Delivery | list[Delivery]"]
"""For each call, in the order they began, its delivery, or those of its batch."""


class SubscriberCalls:
    """What one subscription did during the test; complete after it, too."""

    def __init__(self, calls: Calls, counters: Counters) -> None:
        self._calls = calls
        self.counters = counters
        """What became of the deliveries."""

    @property
    def batches(self) -> list[list[Delivery]]:
        """The deliveries of each call, in the order the calls began; one, but for a batch handler."""
        return [each if isinstance(each, list) else [each] for each in self._calls]

    @property
    def calls(self) -> list[Delivery]:
        """Every delivery that the handler was called with, in order; each element of a batch."""
        return [each for batch in self.batches for each in batch]

    @property
    def values(self) -> list[Any]:
        """The payloads the handler was called with, decoded."""
        return [each.value for each in self.calls]

    @property
    def outcomes(self) -> list[Any]:
        """What the handler said of each, or the error that it raised."""
        return [each.outcome for each in self.calls]

    @property
    def attempts(self) -> list[int]:
        """Which delivery of its record each one was; 1 is the first."""
        return [each.attempt for each in self.calls]


def noted(handler: Handler, calls: Calls, *, batched: bool) -> Handler:
    """The handler, with each of its calls noted in `calls`.

    A handler that takes the payload alone stays one, and its worker's context says which delivery
    it is at. Any other asks for its messages, which say that, in front of its own parameters.
    """
    if handler.is_async and handler.sources is None and not batched:
        return replace(handler, call=_alone(handler.call, calls))
    call = handler.call

    def begin(_value: Any, message: Any, _tools: Any) -> list[Delivery]:
        # In the worker's own context: what the handler and its replies publish goes back to this.
        began = [_begin(each) for each in (message if batched else (message,))]
        if batched:
            CAUSES.set(tuple({cause: None for each in began for cause in each.causes}))
        calls.append(began if batched else began[0])
        return began

    async def awaited(began: list[Delivery], *arguments: Any) -> Any:
        return await _watched(began, call(*arguments), batched=batched)

    def called(began: list[Delivery], *arguments: Any) -> Any:
        try:
            returned = call(*arguments)
        except BaseException as error:
            _from_thread(began, None, error, batched=batched)
            raise
        if inspect.isawaitable(returned):
            return _watched(began, returned, batched=batched)
        _from_thread(began, returned, None, batched=batched)
        return returned

    return replace(
        handler,
        call=awaited if handler.is_async else called,
        sources=(begin, *(handler.sources or (_payload,))),
        wants_message=True,
    )


def _alone(call: Callable[..., Any], calls: Calls) -> Callable[..., Any]:
    """The short way, as each publish of a test pays for it."""

    async def alone(value: Any) -> Any:
        delivery = DELIVERY.get()
        if delivery is None:
            raise RuntimeError("a handler of a test is called only for a delivery of its log")
        delivery.called = delivery.running = True
        calls.append(delivery)
        try:
            returned = await call(value)
        except BaseException as error:
            delivery.end(error=error)
            raise
        delivery.end(returned)
        return returned

    return alone


async def _watched(calls: list[Delivery], call: Awaitable[Any], *, batched: bool) -> Any:
    """The result of a call; its end is noted."""
    try:
        returned = await call
    except BaseException as error:
        _end(calls, None, error, batched=batched)
        raise
    _end(calls, returned, None, batched=batched)
    return returned


def _from_thread(
    calls: list[Delivery], returned: Any, error: BaseException | None, *, batched: bool
) -> None:
    """The end of a call in a thread: decided on the service's loop, before its worker goes on."""
    loop = calls[0].watched.tracker.loop
    # An abandoned thread may outlive the loop.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(lambda: _end(calls, returned, error, batched=batched))


def _end(
    calls: list[Delivery], returned: Any, error: BaseException | None, *, batched: bool
) -> None:
    """Notes the end of a call; a batch handler's list says something of each of its elements."""
    if not batched or not isinstance(returned, list):
        for each in calls:
            each.end(returned, error)
        return
    # A list that is too long is an error of the handler, and says nothing of any of them.
    said = returned if len(returned) <= len(calls) else []
    for at, each in enumerate(calls):
        each.unsaid = at >= len(said)
        each.end(None if each.unsaid else said[at])


def _begin(message: KinesisMessage[Any]) -> Delivery:
    run = message.run
    if not isinstance(run, OneRun):
        raise TypeError("a handler of a test is called only for a delivery of its log")
    run.delivery.begin(message)
    return run.delivery


def _payload(value: Any, _message: Any, _tools: Any) -> Any:
    return value
