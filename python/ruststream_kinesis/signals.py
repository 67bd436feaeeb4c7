"""SIGTERM and SIGINT for the services of an event loop.

A loop has one handler a signal, so the services that run on one loop share it: each signal reaches
all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from weakref import WeakKeyDictionary

__all__ = ["listening"]

logger = logging.getLogger("ruststream_kinesis")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

Stop = Callable[[], None]


class _Shared:
    """The services of one loop, and the handlers that were set for the first of them."""

    def __init__(self) -> None:
        self.stops: list[Stop] = []
        self.installed = contextlib.ExitStack()

    def stop_all(self) -> None:
        for stop in tuple(self.stops):
            stop()


_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, _Shared] = WeakKeyDictionary()


@contextlib.contextmanager
def listening(stop: Stop) -> Iterator[None]:
    """Calls `stop` on every SIGTERM and SIGINT.

    Handlers that were set with `signal.signal` are set again afterwards. One that the host of the
    loop set with `loop.add_signal_handler` is replaced for good, since a loop does not tell it: such
    a host runs its services with `signals=False`.
    """
    if threading.current_thread() is not threading.main_thread():
        # The interpreter hands signals to the main thread only: whoever runs there has to listen.
        logger.info("not in the main thread: signals do not stop this service, stop() does")
        yield
        return
    loop = asyncio.get_running_loop()
    shared = _shared.setdefault(loop, _Shared())
    if not shared.stops:
        shared.installed.enter_context(_installed(loop, shared.stop_all))
    shared.stops.append(stop)
    try:
        yield
    finally:
        shared.stops.remove(stop)
        if not shared.stops:  # whichever came first: the last one cleans up
            shared.installed.close()


@contextlib.contextmanager
def _installed(loop: asyncio.AbstractEventLoop, stop: Stop) -> Iterator[None]:
    added: list[signal.Signals] = []
    previous = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        for number in _SIGNALS:
            try:
                loop.add_signal_handler(number, stop)
                added.append(number)
            except NotImplementedError:
                # Windows: the loop has no signal handlers, the interpreter has.
                signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop))
        yield
    finally:
        for number in added:
            loop.remove_signal_handler(number)
        for number, handler in previous.items():
            if handler is not None:  # None: not set from Python, and Python cannot set it back
                signal.signal(number, handler)
