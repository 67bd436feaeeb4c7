"""A dispatcher at work on pages of numbers, with nothing around it."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from ruststream_kinesis._core import Page
from ruststream_kinesis.attempts import Action
from ruststream_kinesis.channel import Channel, Run
from ruststream_kinesis.codec import JsonCodec
from ruststream_kinesis.counters import Counters
from ruststream_kinesis.dispatch import Caller, Dispatcher
from ruststream_kinesis.handlers import Tools, resolve_handler
from ruststream_kinesis.settlement import Policies, Settlement
from ruststream_kinesis.testing import ManualClock
from ruststream_kinesis.threads import HandlerThreads
from tests.support.channels import FakeShard

# Records of a page, where a test does not say.
COUNT = 8

# Place of the first record of a page.
BASE = 100


@dataclass(eq=False)
class Told(FakeShard):
    """A shard that writes down what it is told."""

    calls: list[tuple[Any, ...]] = field(default_factory=list)

    def ack(self, place: int) -> None:
        """One."""
        self.calls.append(("ack", place))

    def ack_range(self, start: int, stop: int) -> None:
        """A row."""
        self.calls.append(("ack_range", start, stop))

    def ack_all(self, places: Sequence[int]) -> None:
        """Some."""
        self.calls.append(("ack_all", *places))

    def hold(self, place: int) -> None:
        """None."""
        self.calls.append(("hold", place))

    @property
    def settled(self) -> list[int]:
        """Numbers whose acks it was told."""
        places: list[int] = []
        for name, *told in self.calls:
            if name != "hold":
                places += range(*told) if name == "ack_range" else told
        return [place - BASE for place in places]


class Bench:
    """A dispatcher at work on one page of numbers, with nothing around it."""

    def __init__(self, handle: Callable[[int], Awaitable[Any]], lanes: int = 1) -> None:
        self.shard = Told()
        self.channel = Channel(lanes, 64)
        self.counters = Counters()
        copies: Any = SimpleNamespace(
            counters=self.counters,
            policy=SimpleNamespace(action=lambda *_: Action.HOLD, dead_letter=None),
        )
        self.clock = clock = ManualClock()
        nothing = Any
        settlement = Settlement("handle", Policies(), copies, nothing, clock, lambda _: None)  # type: ignore[arg-type]  # no reply is published here
        handler = resolve_handler(handle, JsonCodec())
        tools = Tools(nothing, nothing)  # type: ignore[arg-type]  # nor asked for
        caller = Caller(handler, tools, HandlerThreads(1, "unused"))
        self.dispatcher = Dispatcher(handler, self.channel, caller, settlement, clock)
        self.workers = [asyncio.create_task(self.dispatcher.work(lane)) for lane in range(lanes)]

    async def feed(
        self, keys: Sequence[str] = "k" * COUNT, first: int = 0, shard: Told | None = None
    ) -> bool:
        """Feed a page of one number for each key, from `first` up; whether all of it is in."""
        records = [
            {
                "SequenceNumber": str(n + 1),
                "PartitionKey": key,
                "Data": base64.b64encode(b"%d" % n).decode(),
            }
            for n, key in enumerate(keys, first)
        ]
        page = Page.parse(json.dumps({"Records": records}).encode())
        shard = shard or self.shard
        run = Run(shard, shard.generation, page, BASE + first, range(len(keys)))
        return await self.channel.feed(run)

    @property
    def settled(self) -> list[int]:
        """Numbers whose acks the first shard was told."""
        return self.shard.settled
