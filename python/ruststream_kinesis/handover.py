"""Hand-over of a shard to another member: what was started ends, the rest is the successor's.

Invariants:

* A shard that is handed over in peace repeats nothing. Its checkpoint covers every delivery that was
  started: those older, in the shard, than the newest started one are run too, and the rest of its
  aggregate, and nothing newer is.
* While a handler of the shard runs it is not let go, whether or not a rewind made its delivery void.
"""

from __future__ import annotations

import logging

from ruststream_kinesis.backoff import MinuteLog
from ruststream_kinesis.channel import Channel
from ruststream_kinesis.clock import Clock
from ruststream_kinesis.copies import Copies
from ruststream_kinesis.holding import Holding
from ruststream_kinesis.wording import fields

__all__ = ["LOOK", "drain"]

logger = logging.getLogger("ruststream_kinesis")

# How often a shard on its way out looks whether its handlers have ended.
LOOK = 0.05


async def drain(holding: Holding, channel: Channel, copies: Copies, clock: Clock) -> None:
    """Ends when nothing of the shard runs any more, or its holding ended otherwise.

    Its reader has been stopped. There is no deadline: while a handler runs, a record of the same
    key must not be handled elsewhere. The lease is renewed meanwhile.
    """
    shard = holding.shard
    channel.limit([shard])
    # Never started: they stay open, and keep nobody waiting.
    shard.hold_above(shard.ceiling)
    # A copy that waits would keep the shard for as long; its receiver waits out the rest.
    copies.flush(shard)
    log = MinuteLog(clock)
    log.due()
    while holding.live and (not shard.watermark.drained or channel.at_work(shard)):
        # A batch would close when its window is over; what it has of this shard would wait as long.
        channel.hurry(shard)
        await clock.sleep(LOOK)
        if log.due() is not None:
            logger.warning(
                "shard %s of stream %s waits to be handed over: %d of its records are still at "
                "work",
                shard.shard_id,
                shard.stream,
                shard.watermark.open - shard.watermark.held,
                extra=fields(shard.stream, shard.shard_id),
            )
