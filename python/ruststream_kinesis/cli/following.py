"""A stream that is followed from outside, over its splits and merges, without leases or checkpoints.

Invariant: a shard is read only after every parent that is followed, too, was read to its end, so the
records of a key come in their order. Records of different shards come as they are read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing

from ruststream_kinesis._core import Page
from ruststream_kinesis.cli.asking import together
from ruststream_kinesis.cli.shard_pages import pages
from ruststream_kinesis.clock import Clock
from ruststream_kinesis.errors import ConfigurationError
from ruststream_kinesis.position import KinesisPosition
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.transport import ShardInfo, Transport, patiently

__all__ = ["follow"]

# Pages that wait for who prints them; its pace is everybody's.
_AHEAD = 4
# A shard that was split names its children at its end; where none is listed yet, there is another look.
_LOOK = 1.0
_LOOKS = 30


async def follow(
    transport: Transport,
    clock: Clock,
    stream: StreamRef,
    position: KinesisPosition,
    *,
    endless: bool,
) -> AsyncGenerator[tuple[str, Page], None]:
    """The pages of all shards from a position on, with the id of their shard; those with records.

    Args:
        transport: Makes the calls.
        clock: Time between two of them.
        stream: Which stream.
        position: Where to begin: in every shard, or at one record of one shard, and go on with that
            shard's children.
        endless: Go on at the tip, for ever. Else each shard is left at its tip.

    Raises:
        KinesisError: A shard cannot be read, or there is no such shard.
    """
    following = _Following(transport, clock, stream, position, endless=endless)
    run = asyncio.ensure_future(following.run())
    try:
        while (got := await following.pages.get()) is not None:
            yield got
    finally:
        run.cancel()
        # However it ended, that is said once, by the line below.
        await asyncio.wait({run})
    if not run.cancelled():
        run.result()


class _Following:
    def __init__(
        self,
        transport: Transport,
        clock: Clock,
        stream: StreamRef,
        position: KinesisPosition,
        *,
        endless: bool,
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._stream = stream
        self._position = position
        self._endless = endless
        self._ended: dict[str, asyncio.Event] = {}
        """The shards that are followed."""
        self.pages: asyncio.Queue[tuple[str, Page] | None] = asyncio.Queue(_AHEAD)

    async def run(self) -> None:
        """Follows until every shard has ended, and says that nothing comes any more.

        Raises:
            KinesisError: A shard cannot be read.
        """
        try:
            await self._follow()
        except Exception:
            # What was read before is still given out.
            await self.pages.put(None)
            raise
        await self.pages.put(None)

    async def _follow(self) -> None:
        shards = await self._list()
        position, first = self._position, list(shards)
        if position.kind == "sequence":
            first = [shard for shard in shards if shard.shard_id == position.shard_id]
            if not first:
                raise ConfigurationError(
                    f"the stream lists no shard {position.shard_id!r}: it has "
                    f"{len(shards)} shard(s), see ruststream-kinesis shards {self._stream}"
                )
        elif position.kind == "latest":
            # Nothing comes into a closed one.
            first = [shard for shard in shards if not shard.ended]
        async with together() as self._tasks:
            self._start(first, position)

    def _start(self, shards: Iterable[ShardInfo], position: KinesisPosition) -> None:
        new = [shard for shard in shards if shard.shard_id not in self._ended]
        for shard in new:
            self._ended[shard.shard_id] = asyncio.Event()
        for shard in new:
            self._tasks.create_task(self._read(shard, position), name=f"tail[{shard.shard_id}]")

    async def _read(self, shard: ShardInfo, position: KinesisPosition) -> None:
        for parent in shard.parents:
            if parent in self._ended:
                await self._ended[parent].wait()
        source = pages(
            self._transport, self._clock, self._stream, shard.shard_id, position, after=False
        )
        page: Page | None = None
        async with aclosing(source):
            async for page in source:
                if len(page):
                    await self.pages.put((shard.shard_id, page))
                if not self._endless and not page.millis_behind_latest:
                    break
        self._ended[shard.shard_id].set()
        if page is not None and page.next_shard_iterator is None:
            await self._go_on(shard.shard_id, page.child_shards)

    async def _go_on(self, parent: str, named: list[str]) -> None:
        """Reads the children of a shard that has ended, from their beginning."""
        for _ in range(_LOOKS):
            listed = await self._list()
            children = [shard for shard in listed if parent in shard.parents]
            # A stream of another make names none: whoever is listed is one.
            if {shard.shard_id for shard in children}.issuperset(named):
                self._start(children, KinesisPosition.horizon())
                return
            await self._clock.sleep(_LOOK)

    async def _list(self) -> tuple[ShardInfo, ...]:
        listing = await patiently(lambda: self._transport.list_shards(self._stream), self._clock)
        return listing.shards
