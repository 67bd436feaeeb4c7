"""Batched publishing in a test: nothing waits in real time, and each record keeps its cause.

The production collectors are watched through their own methods, wrapped on the instance; they know
nothing of it. A record that waits for its request counts as open, so that who waits for what comes
of a publish waits for it too.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from typing import TYPE_CHECKING, Any

from ruststream_kinesis.aggregating import AggregatingCollector
from ruststream_kinesis.testing.clock import LiveClock, ManualClock
from ruststream_kinesis.testing.delivery import CAUSES, Cause, Expected
from ruststream_kinesis.transport import PutEntry

if TYPE_CHECKING:
    from collections.abc import Callable

    from ruststream_kinesis._core import Maker
    from ruststream_kinesis.buffer import Pending
    from ruststream_kinesis.collector import Batching, Collector
    from ruststream_kinesis.collectors import Collectors
    from ruststream_kinesis.stream import StreamRef
    from ruststream_kinesis.testing.tracking import Tracker
    from ruststream_kinesis.transport import Parts

__all__ = ["Caused", "watch"]

# Loop turns without a change until nobody is believed to publish more for a request.
_TURNS = 10


class Caused(PutEntry):
    """An entry that knows what it goes back to: it is put by a task that does not."""

    causes: tuple[Cause, ...] = ()


class Sending(Expected):
    """A record that waits for its request, or is on its way."""

    __slots__ = ("_to",)

    def __init__(self, stream: str, causes: tuple[Cause, ...]) -> None:
        self._to = stream
        self.shard_id = self.sequence_number = "not yet"
        self.causes = causes

    @property
    def stream(self) -> str:
        """Plain name of the stream."""
        return self._to

    @property
    def state(self) -> str:
        """What it waits for, in words."""
        return "it waits for its request"


def watch(
    collectors: Collectors, tracker: Tracker, clock: ManualClock | LiveClock
) -> Callable[[], None]:
    """Watches what a service publishes in batches.

    Args:
        collectors: The service's.
        tracker: Is told of each record until it is decided.
        clock: A manual one is moved by what a collector waits for, when nothing else happens.

    Returns:
        A function that ends it.
    """
    of = collectors.of

    def watched(stream: StreamRef, batching: Batching, loop: Any) -> Collector:
        collector = of(stream, batching, loop)
        submit = collector.submit

        def caused(entry: PutEntry, *rest: Any) -> Pending:
            # On whatever loop, in the context of who publishes.
            own = Caused(*entry)
            own.causes = CAUSES.get()
            record = submit(own, *rest)
            _follow(record, Sending(stream.name, own.causes), tracker)
            return record

        if "submit" not in vars(collector):
            vars(collector).update(submit=caused, way=_way, **_packing(collector))
        return collector

    async def hastened(seconds: float, changed: asyncio.Event) -> None:
        for _ in range(_TURNS):
            if changed.is_set():
                return
            await asyncio.sleep(0)
        clock.hasten()
        await clock.sleep(seconds)

    vars(collectors)["of"] = watched
    if isinstance(clock, ManualClock):
        vars(collectors)["pause"] = hastened

    def restore() -> None:
        for name in ("of", "pause"):
            vars(collectors).pop(name, None)

    return restore


def _way(maker: Maker, deadline: float) -> Callable[..., Parts]:  # noqa: ARG001 - `submit` has it
    """What stands in for the short way of a record: it passes `submit`, where its cause is noted."""
    return maker.parts


def _packing(collector: Collector) -> dict[str, Any]:
    """What stands in for the packing of a collector that does so."""
    if not isinstance(collector, AggregatingCollector):
        return {}
    return {"pack": functools.partial(_packed, collector.pack)}


def _packed(pack: Callable[[list[PutEntry]], PutEntry], entries: list[PutEntry]) -> PutEntry:
    """An aggregate goes back to whatever one of its records does."""
    whole = pack(entries)
    if not isinstance(whole, Caused):
        whole = Caused(*whole)
        given = [each.causes for each in entries if isinstance(each, Caused)]
        whole.causes = tuple(dict.fromkeys(itertools.chain.from_iterable(given)))
    return whole


def _follow(record: Pending, sending: Sending, tracker: Tracker) -> None:
    if asyncio.get_running_loop() is tracker.loop:
        tracker.opened(sending)
        record.add_done_callback(lambda _: tracker.closed(sending))
    else:
        tell = tracker.loop.call_soon_threadsafe
        tell(tracker.opened, sending)
        record.add_done_callback(lambda _: tell(tracker.closed, sending))
