"""All collectors of a service: found by who publishes, flushed and ended by the stop.

A stop has to know what is on its way wherever that is: in collectors of any event loop, and one by
one. Invariant: what is not decided when the connection closes is named, once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from ruststream_kinesis.aggregating import AggregatingCollector
from ruststream_kinesis.clock import wait
from ruststream_kinesis.collector import Batching, Collector
from ruststream_kinesis.counters import PublishCounters
from ruststream_kinesis.state import PublishState
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.transport import Link

__all__ = ["Collectors"]

logger = logging.getLogger("ruststream_kinesis")

# Partition keys that a message names; how many there are stands before them.
_NAMED = 10


class Collectors:
    """All collectors of a service, and what is published one by one meanwhile.

    Args:
        link: The service's connection.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self.published: dict[str, PublishCounters] = {}
        """By the name of the stream; since this process began."""
        self._lock = threading.Lock()
        self._known: weakref.WeakValueDictionary[
            tuple[asyncio.AbstractEventLoop, StreamRef, Batching], Collector
        ] = weakref.WeakValueDictionary()
        """Idle ones live as long as a publisher that used them."""
        self._busy: dict[Collector, None] = {}
        self._single: dict[int, tuple[str, str]] = {}
        self._numbers = itertools.count()
        self._wake: Callable[[], None] | None = None

    def of(
        self, stream: StreamRef, batching: Batching, loop: asyncio.AbstractEventLoop
    ) -> Collector:
        """The collector of this stream on the running loop."""
        key = (loop, stream, batching)
        with self._lock:
            found = self._known.get(key)
            if found is None:
                kind = AggregatingCollector if batching.aggregate else Collector
                found = self._known[key] = kind(self, self._link, stream, batching, loop)
                found.counters = self.counters_of(stream.name)
        return found

    def counters_of(self, stream: str) -> PublishCounters:
        """The counters of a stream, whoever publishes to it."""
        found = self.published.get(stream)
        # Not `setdefault` alone: this is asked for at every single put.
        return found or self.published.setdefault(stream, PublishCounters())

    @property
    def state(self) -> tuple[PublishState, ...]:
        """What was put into each stream; counters as they are at this moment."""
        known = sorted(self.published.items())
        return tuple(PublishState(stream, replace(counters)) for stream, counters in known)

    async def pause(self, seconds: float, changed: asyncio.Event) -> None:
        """Waits until `changed`, at most `seconds` of the service's time."""
        await wait(self._link.clock, seconds, changed)

    def begins(self, collector: Collector) -> None:
        """A collector has something to send."""
        self._busy[collector] = None

    def ends(self, collector: Collector) -> None:
        """A collector has nothing left."""
        self._busy.pop(collector, None)

    def sets_out(self, stream: str, key: str) -> int:
        """A record that travels alone is on its way; returns its number, for `arrives`."""
        number = next(self._numbers)
        self._single[number] = (stream, key)
        return number

    def arrives(self, number: int) -> None:
        """Such a record is in its stream, or given up."""
        del self._single[number]
        wake = self._wake
        if wake is not None and not self._single:
            wake()

    async def flush(self, timeout: float) -> str:
        """Sends all that waits, on every loop, and waits until it is decided.

        Args:
            timeout: Seconds.

        Returns:
            What is left after them, in words; empty where nothing is.
        """
        here = asyncio.get_running_loop()
        waiting: set[asyncio.Future[None]] = set()
        for collector in list(self._busy):
            if collector.loop is here:
                waiting.add(asyncio.ensure_future(collector.drained()))
                continue
            coroutine = collector.drained()
            try:
                there = asyncio.run_coroutine_threadsafe(coroutine, collector.loop)
            except RuntimeError:  # that loop is closed; its records go nowhere
                coroutine.close()
                continue
            waiting.add(asyncio.wrap_future(there))
        if self._single:
            waiting.add(asyncio.ensure_future(self._no_single(here)))
        if waiting:
            # Not under a clock of our own: a stop has real deadlines.
            _, late = await asyncio.wait(waiting, timeout=max(0.0, timeout))
            for each in late:
                each.cancel()
        return self._left()

    async def _no_single(self, loop: asyncio.AbstractEventLoop) -> None:
        gone = asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # nobody waits any more, the loop is closed
                loop.call_soon_threadsafe(gone.set)

        self._wake = wake
        try:
            while self._single:
                gone.clear()
                await gone.wait()
        finally:
            self._wake = None

    def _left(self) -> str:
        unsent: dict[str, list[str]] = {}
        for collector in list(self._busy):
            unsent.setdefault(collector.stream.name, []).extend(collector.unsent())
        for stream, key in list(self._single.values()):
            unsent.setdefault(stream, []).append(key)
        return _named(unsent)

    def close(self) -> None:
        """Ends every collector; what is not decided is not sent, and said to be so."""
        here = asyncio.get_running_loop()
        for collector in list(self._busy):
            collector.shut()
        why = "the service has stopped"
        left = self._left()
        if left:
            logger.error("not sent at the stop: %s", left)
        for collector in list(self._busy):
            if collector.loop is here:
                collector.abandon(why)
                continue
            with contextlib.suppress(RuntimeError):  # closed meanwhile, and its records with it
                collector.loop.call_soon_threadsafe(collector.abandon, why)


def _named(unsent: dict[str, list[str]]) -> str:
    """Records that were not sent, by stream and partition key, for messages."""
    parts = []
    for stream, keys in unsent.items():
        if not keys:
            continue
        # Records of one key are told with their number.
        listed = [key if n == 1 else f"{key} ({n})" for key, n in Counter(keys).items()]
        more = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
        parts.append(
            f"{len(keys)} record(s) for stream {stream}, partition keys "
            + ", ".join(listed[:_NAMED])
            + more
        )
    return "; ".join(parts)
