"""Known bugs, planted on purpose: the simulation is worth something only if it finds them.

Each plant is a context manager that breaks the package in one place, and names what has to be said of
it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pytest

from ruststream_kinesis import KinesisPosition, coordinator, sharing, taking
from ruststream_kinesis.attempts import Copy, RetryPolicy
from ruststream_kinesis.coordinator import Coordinator
from ruststream_kinesis.copies import Copies
from ruststream_kinesis.dispatch import Dispatcher
from ruststream_kinesis.holding import Holding
from ruststream_kinesis.leases import SHARD_END, LeaseKey
from ruststream_kinesis.leases.notebook import Notebook
from ruststream_kinesis.leases.tabled import TableLeaseStore
from ruststream_kinesis.plan import share
from ruststream_kinesis.reader import Reader
from ruststream_kinesis.redirect import Redirecting
from ruststream_kinesis.rewind import Rewinds
from ruststream_kinesis.settlement import Settlement
from ruststream_kinesis.shard import HeldShard
from tests.sim.tables import SimTable

__all__ = ["PLANTS", "Plant"]

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Plant:
    """One bug."""

    name: str
    patch: Patch
    says: str
    """Part of what the simulation says about it, a regular expression."""
    first: int = 0
    """Where to begin: seeds that are known to show nothing are not run."""

    def planted(self) -> AbstractContextManager[None]:
        """Break the package for a while."""
        return _planted(self.patch)


@contextlib.contextmanager
def _planted(patch: Patch) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkey:
        patch(monkey)
        yield


def _unfenced(monkey: pytest.MonkeyPatch) -> None:
    """A checkpoint is stored whoever holds the shard."""
    _without_condition(monkey, "lease_owner")


def _without_condition(monkey: pytest.MonkeyPatch, name: str) -> None:
    """Checkpoint writes to the table lack the condition on one attribute."""
    update = SimTable.update

    async def loose(self: Any, key: str, change: Any, condition: Any) -> Any:
        if "checkpoint_number" in change.set:
            condition = [check for check in condition if check.name != name]
        return await update(self, key, change, condition)

    monkey.setattr(SimTable, "update", loose)


def _unordered(monkey: pytest.MonkeyPatch) -> None:
    """A child is read beside its parents."""
    monkey.setattr(
        coordinator,
        "startable",
        lambda shards, finished, held, begun: [
            s.shard_id for s in shards if s.shard_id not in finished
        ],
    )


def _settled_at_once(monkey: pytest.MonkeyPatch) -> None:
    """What was delivered counts as handled."""
    deliver = HeldShard.deliver

    def settle(self: HeldShard, page: Any) -> int:
        base = deliver(self, page)
        self.ack_range(base, base + len(page))
        return base

    monkey.setattr(HeldShard, "deliver", settle)


def _lives_on(monkey: pytest.MonkeyPatch) -> None:
    """A lost shard is only marked: what is queued of it still counts."""

    def lose(self: HeldShard) -> None:
        self.lost = True
        self.opened.set()

    monkey.setattr(HeldShard, "lose", lose)
    # Else the fence would stop them all the same.
    _no_fence(monkey)


def _wall_clock(monkey: pytest.MonkeyPatch) -> None:
    """A lease is judged by what the machines believe the time to be."""
    make = TableLeaseStore.__init__

    def remember(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        walls[self._notebook] = self._clock

    def judged(self: Any, key: Any, lease: Any, look: Any, last: Any = None) -> Any:
        expiry = lease.row.get("lease_expiry") or 0
        return lease.state(free=lease.owner is None or expiry < 1000 * walls[self].time())

    walls: dict[Any, Any] = {}
    monkey.setattr(TableLeaseStore, "__init__", remember)
    monkey.setattr(Notebook, "_judged", judged)


def _ended_early(monkey: pytest.MonkeyPatch) -> None:
    """A shard is finished when it was read."""
    monkey.setattr(
        HeldShard,
        "checkpoint",
        property(
            lambda self: SHARD_END if self.ended and not self.lost else self.watermark.position
        ),
    )


def _skips(monkey: pytest.MonkeyPatch) -> None:
    """A new iterator starts at the tip."""
    new_iterator = Reader._new_iterator

    async def at_the_tip(self: Reader) -> str:
        if self._shard.watermark.position is not None:
            self._shard.read_from = KinesisPosition.latest()
            self._shard.read_after = False
        return await new_iterator(self)

    monkey.setattr(Reader, "_new_iterator", at_the_tip)


def _forgets_the_end(monkey: pytest.MonkeyPatch) -> None:
    """A release carries no checkpoint."""
    release = Holding.release

    async def without(self: Holding, store: Any) -> None:
        self.final = None
        await release(self, store)

    monkey.setattr(Holding, "release", without)


def _goes_back(monkey: pytest.MonkeyPatch) -> None:
    """A checkpoint is stored whatever its number: one that arrives late wins."""
    _without_condition(monkey, "checkpoint_number")


def _no_drain(monkey: pytest.MonkeyPatch) -> None:
    """A stop leaves what is queued, also what is older than the newest delivery started."""
    close = Dispatcher.close

    def at_once(self: Dispatcher, shards: Any) -> None:
        close(self, shards)
        for shard in shards:
            shard.ceiling = -1

    monkey.setattr(Dispatcher, "close", at_once)


def _no_fence(monkey: pytest.MonkeyPatch) -> None:
    """Nobody looks at the clock before a delivery starts: the loss is noticed when it is told."""
    no_fence = property(lambda self: None, lambda self, fence: None)
    monkey.setattr(HeldShard, "fence", no_fence, raising=False)


def _keeps_all(monkey: pytest.MonkeyPatch) -> None:
    """Nobody hands over anything."""
    plan = share

    def kept(shards: Any, members: Any) -> dict[str, str]:
        planned = plan(shards, members)
        return {shard: shards[shard] or planned[shard] for shard in planned}

    monkey.setattr(sharing, "share", kept)


def _no_limits(monkey: pytest.MonkeyPatch) -> None:
    """Nobody's `max_shards` counts."""
    plan = share
    monkey.setattr(sharing, "share", lambda shards, members: plan(shards, dict.fromkeys(members)))
    monkey.setattr(sharing, "_room", lambda me, taken: None)


def _one_row(monkey: pytest.MonkeyPatch) -> None:
    """Both subscriptions of a stream write the same rows."""
    row = property(lambda self: f"{self.stream}:{self.shard_id}")
    monkey.setattr(LeaseKey, "row", row)


def _buried_early(monkey: pytest.MonkeyPatch) -> None:
    """A record is settled before its dead letter is in its stream."""
    bury = Copies._bury

    async def early(self: Copies, copy: Any, error: BaseException | None) -> None:
        self._settle(copy)
        await bury(self, copy, error)

    monkey.setattr(Copies, "_bury", early)


def _answered_early(monkey: pytest.MonkeyPatch) -> None:
    """A record is settled before its reply is in its stream."""
    reply = Settlement.reply

    async def early(self: Settlement, value: Any, run: Any, index: int, *more: Any) -> bool:
        run.shard.ack(run.base + index)
        return await reply(self, value, run, index, *more)

    monkey.setattr(Settlement, "reply", early)


def _once_more(monkey: pytest.MonkeyPatch) -> None:
    """There is an attempt too many."""
    action = RetryPolicy.action
    monkey.setattr(
        RetryPolicy,
        "action",
        lambda self, outcome, attempt: action(self, outcome, max(1, attempt - 1)),
    )


def _unwritten(monkey: pytest.MonkeyPatch) -> None:
    """A seek does not store where it went."""
    rewind = HeldShard.rewind

    def forget(self: HeldShard, position: Any, *, at_tip: bool = False) -> None:
        rewind(self, position, at_tip=at_tip)
        self.resume_from = None

    monkey.setattr(HeldShard, "rewind", forget)


def _still_counts(monkey: pytest.MonkeyPatch) -> None:
    """What was delivered before a seek counts after it."""
    void = HeldShard.void

    def kept(self: HeldShard) -> None:
        if self.lost:
            void(self)

    monkey.setattr(HeldShard, "void", kept)


def _after_it(monkey: pytest.MonkeyPatch) -> None:
    """A seek to a record goes behind it."""
    rewind = HeldShard.rewind

    def behind(self: HeldShard, position: Any, *, at_tip: bool = False) -> None:
        rewind(self, position, at_tip=at_tip)
        self.read_after = position.kind == "sequence"

    monkey.setattr(HeldShard, "rewind", behind)


def _orphaned(monkey: pytest.MonkeyPatch) -> None:
    """A replay leaves out the parents."""
    monkey.setattr(Redirecting, "_read_first", lambda *_: set())


def _not_gated(monkey: pytest.MonkeyPatch) -> None:
    """Children of a parent that is read again are read on."""
    monkey.setattr(Rewinds, "_stand_back", lambda *_: None)
    monkey.setattr(Coordinator, "_stand_back", lambda *_: None)
    monkey.setattr(taking, "ancestors", lambda shard_ids, listed: set())


def _late_copies(monkey: pytest.MonkeyPatch) -> None:
    """Copies and letters of what a seek made void go out all the same."""
    monkey.setattr(Copy, "is_void", lambda self: False)


PLANTS = [
    Plant("a checkpoint without a fence", _unfenced, "does not hold|that .* holds"),
    Plant("a child beside its parents", _unordered, "parent .* is not done"),
    Plant("settled before it is handled", _settled_at_once, "is not done|is open there"),
    Plant("deliveries live on after the loss", _lives_on, "is gone|took meanwhile"),
    Plant("a lease judged by wall clocks", _wall_clock, "s after .* wrote it"),
    Plant("the end of a shard stored when it was read", _ended_early, "as SHARD_END, but"),
    Plant("a new iterator at the tip", _skips, "after turn|not handled|is not done"),
    Plant("a release without the last checkpoint", _forgets_the_end, "was released at|came again"),
    Plant("writes that overtake each other", _goes_back, "went back"),
    Plant("a stop that does not drain", _no_drain, "was released at|came again"),
    # One seed in twenty has a machine that is suspended in a handler with more of its run to come.
    Plant("deliveries after the lease ran out", _no_fence, "took meanwhile", first=60),
    Plant("no hand-over", _keeps_all, "not balanced"),
    Plant("no max_shards", _no_limits, "has more than"),
    Plant("two subscriptions, one row", _one_row, "another subscription's|which it does not hold"),
    Plant("settled before its dead letter is there", _buried_early, "is not done|is open there"),
    Plant("settled before its reply is there", _answered_early, "is not done|is open there"),
    Plant("an attempt too many", _once_more, "that no handler asked for"),
    Plant("a seek that is not stored", _unwritten, "forgets it|forgot where|not handled"),
    Plant(
        "what was delivered before a seek counts",
        _still_counts,
        "leaves out|comes again|forgets it",
    ),
    Plant("a seek behind its record", _after_it, "leaves out"),
    Plant("a replay without parents", _orphaned, "replays .* without"),
    Plant(
        "children beside the replay of parents",
        _not_gated,
        "parent .* is not done|without|beside the replay",
        first=40,
    ),
    Plant("copies of what is void", _late_copies, "which is void since a seek"),
]
