"""What the package draws by chance, its thread and its log, while a world runs: all from the seed.

Two places of the package are listened to: where it is decided where a shard opens, and where a shard is
moved. Both have their effect at one moment, which no row and no delivery tells.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import random
import secrets
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ruststream_kinesis import KinesisPosition, backoff, heartbeat
from ruststream_kinesis.leases import LeaseState
from ruststream_kinesis.opening import OpeningRule, Place
from ruststream_kinesis.shard import HeldShard

if TYPE_CHECKING:
    from tests.sim.world import World

__all__ = ["determined"]


class _Ears(logging.Handler):
    """Puts what the package logs into the trace."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        """Note a line, under the name of the loop that runs."""
        who = asyncio._get_running_loop()
        self._world.trace.note(who, f"[{record.levelname}]", record.getMessage())


def _hearing(world: World) -> tuple[Any, Any]:
    """`OpeningRule.place` and `HeldShard.rewind`, and the monitor hears what they do."""
    place, rewind = OpeningRule.place, HeldShard.rewind

    def heard_place(rule: OpeningRule, lease: LeaseState, *, first_pass: bool) -> Place:
        found = place(rule, lease, first_pass=first_pass)
        monitor = world.fleet.monitors[lease.key.group]
        if found.moved:
            monitor.moves(lease.owner, found.position, to_tip=found.at_tip, opening=True)
        else:
            monitor.opens(lease.owner, found.position, after=found.after)
        return found

    def heard_rewind(shard: HeldShard, position: KinesisPosition, *, at_tip: bool = False) -> None:
        rewind(shard, position, at_tip=at_tip)
        monitor = world.fleet.monitors[shard.lease.key.group]
        monitor.moves(shard.lease.owner, position, to_tip=at_tip)

    return heard_place, heard_rewind


@contextlib.contextmanager
def determined(world: World) -> Iterator[None]:
    """Everything that the package draws by chance, and its thread, come from the seed."""
    rng = random.Random(f"{world.seed}/package")
    token_hex = secrets.token_hex

    def determined(nbytes: int | None = None) -> str:
        size = nbytes or 32
        return f"{rng.getrandbits(8 * size):0{2 * size}x}"

    secrets.token_hex = determined
    backoff._RNG.seed(f"{world.seed}/jitter")
    # As a module of no type: it exports no function of another one.
    package: Any = heartbeat
    threads = package.run_in_thread

    async def run_in_thread(name: str, work: Any) -> None:
        loop = asyncio.get_running_loop()
        process = next(each.process for each in world.instances if each.process.loop is loop)
        await process.run_in_thread(name, work)

    package.run_in_thread = run_in_thread
    place, rewind = OpeningRule.place, HeldShard.rewind
    heard: Any = OpeningRule, HeldShard
    heard[0].place, heard[1].rewind = _hearing(world)
    logger = logging.getLogger("ruststream_kinesis")
    disabled, logger.disabled = logger.disabled, not world.verbose
    level, ears = logger.level, _Ears(world)
    if world.verbose:
        logger.addHandler(ears)
        logger.setLevel(logging.INFO)
    collecting = gc.isenabled()
    gc.disable()
    hook = sys.unraisablehook
    try:
        yield
    finally:
        # Coroutines of crashed processes end here, with complaints that mean nothing.
        sys.unraisablehook = lambda _: None
        with warnings.catch_warnings(action="ignore"):
            world.dispose()
            # The youngest generation is what this world made: nothing was collected meanwhile.
            gc.collect(0)
        sys.unraisablehook = hook
        if collecting:
            gc.enable()
        logger.removeHandler(ears)
        logger.setLevel(level)
        logger.disabled = disabled
        secrets.token_hex = token_hex
        package.run_in_thread = threads
        heard[0].place, heard[1].rewind = place, rewind
