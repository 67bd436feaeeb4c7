"""Keeps the leases of a process alive, on a thread of its own where the store allows that.

Invariants:

* A tenure counts until its last good renewal, by the moment that was *sent*, is nearly a lease
  period old on this machine's monotonic clock. Others take the shard later than that, never sooner.
* Once over, a tenure stays over: what arrives late revives nothing, and the verdict of an answer
  counts only for the acquisition that asked.
* While the main loop stands still for longer than `stall_timeout`, nothing is renewed: a process
  that is stuck for good must not keep its shards from the others.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from collections.abc import Callable

from ruststream_kinesis.backoff import MinuteLog
from ruststream_kinesis.clock import Clock
from ruststream_kinesis.errors import LeaseLost
from ruststream_kinesis.leases.base import LeaseKey, LeaseState, LeaseStore, Member
from ruststream_kinesis.loopthread import run_in_thread
from ruststream_kinesis.supervisor import Supervisor
from ruststream_kinesis.wording import fields, fields_of, kind, shown

__all__ = ["LEASE_DURATION", "PASS_INTERVAL", "STALL_TIMEOUT", "Heartbeat", "Tenure"]

logger = logging.getLogger("ruststream_kinesis")

# One round of the lease loop, and of the renewals; three of them fit into a lease, so two may fail.
PASS_INTERVAL = 3.0
LEASE_DURATION = 10.0
# A member is taken for dead a pass before its leases run out: when they do, everybody plans without
# it. One that is only slow loses nothing by that.
MEMBER_DURATION = LEASE_DURATION - PASS_INTERVAL
# Delivering stops so long before the lease runs out: clocks tick at slightly different rates.
_MARGIN = 0.5
# A handler may block the loop for minutes; longer than this, it is stuck.
STALL_TIMEOUT = 300.0
# How often the main loop shows that it moves.
_PULSE = 1.0
# Renewals on their way at once; a thousand shards take a fraction of the interval.
_AT_ONCE = 64


class Tenure:
    """One acquisition of a shard, as long as it counts.

    Args:
        lease: The acquisition.
        until: Monotonic time at which it is over unless renewed.
        over: Called once when it is over, on the main loop, with the reason.
    """

    __slots__ = ("_lock", "_over", "_told", "lease", "ran_out", "reason", "until")

    def __init__(self, lease: LeaseState, until: float, over: Callable[[str], None]) -> None:
        self.lease = lease
        self.until = until
        self.reason: str | None = None
        """Why it is over; `None` while it counts."""
        self.ran_out = False
        """It is over because it could not be renewed in time, and not because it is another's."""
        self._over = over
        self._told = False
        self._lock = threading.Lock()

    def prolong(self, until: float) -> None:
        """A renewal was answered well, in time or not."""
        with self._lock:
            if self.reason is None:
                self.until = max(self.until, until)

    def end(self, reason: str, *, ran_out: bool = False) -> bool:
        """It is over; whether that is news."""
        with self._lock:
            if self.reason is not None:
                return False
            self.reason, self.until, self.ran_out = reason, float("-inf"), ran_out
            return True

    def expire(self, now: float) -> bool:
        """Ends the tenure if its time is over, on the main loop; whether it is over."""
        if now < self.until:
            return False
        self.end("its lease ran out unrenewed", ran_out=True)
        # Where the renewing thread ended it, too: what it told waits for the loop to go round, and
        # whoever asks here is about to start a handler.
        self.tell()
        return True

    def tell(self) -> None:
        """Tells the owner of a tenure that `end` ended, unless it knows; on the main loop."""
        if not self._told:
            self._told = True
            self._over(self.reason or "")


class Heartbeat:
    """Renews every lease of a process, and its row among the members.

    Args:
        store: Where the leases are.
        clock: Time.
        owner_id: Names the instance.
        max_shards: Shards of each subscription that this instance takes at most.
        stall_timeout: Seconds that the main loop may stand still.
    """

    def __init__(
        self,
        store: LeaseStore,
        clock: Clock,
        owner_id: str,
        *,
        max_shards: int | None = None,
        stall_timeout: float = STALL_TIMEOUT,
    ) -> None:
        self._store = store
        self._clock = clock
        self._stall_timeout = stall_timeout
        self._member = Member(secrets.token_hex(8), owner_id, (), max_shards)
        self._tenures: dict[Tenure, None] = {}
        """In the order in which they began: a simulation that is run again does the same."""
        self._lock = threading.Lock()
        self._task: asyncio.Task[None] | None = None
        self._pulse = 0.0
        self._stalled = False
        self._log = MinuteLog(clock)
        self.error: str | None = None
        """Class and code of the last failure to renew, while renewals fail."""

    @property
    def member(self) -> Member:
        """This process among the members."""
        return self._member

    async def join(self, subscription: str, supervisor: Supervisor) -> None:
        """Takes part in a subscription: once it returns, the others count on this instance."""
        self._subscribe({*self._member.subscriptions, subscription})
        if self._task is None or self._task.done():
            self._pulse = self._clock.monotonic()
            self._task = supervisor.spawn("heartbeat", self._host())
            # The thread is there before anything of this loop can block it.
            await asyncio.sleep(0)
        await self._store.beat(self._member, duration=MEMBER_DURATION)

    async def part(self, subscription: str) -> None:
        """Takes no part any more; what is held is kept until it is released."""
        self._subscribe({*self._member.subscriptions} - {subscription})
        if self._member.subscriptions:
            await self._store.beat(self._member, duration=MEMBER_DURATION)
        else:
            await self._store.leave(self._member.nonce)

    def _subscribe(self, subscriptions: set[str]) -> None:
        was = self._member
        self._member = Member(was.nonce, was.owner_id, tuple(sorted(subscriptions)), was.max_shards)

    def hold(self, lease: LeaseState, sent: float, over: Callable[[str], None]) -> Tenure:
        """Renews a lease from now on.

        Args:
            lease: As acquired.
            sent: When it was asked for, on the monotonic clock.
            over: Called on the main loop when it is lost, or has run out.
        """
        tenure = Tenure(lease, sent + LEASE_DURATION - _MARGIN, over)
        with self._lock:
            self._tenures[tenure] = None
        return tenure

    def drop(self, tenure: Tenure) -> None:
        """Renews it no more; it is not lost by that, and not over."""
        with self._lock:
            self._tenures.pop(tenure, None)

    async def _host(self) -> None:
        """Runs the rounds here, or in a thread whose end is noticed here."""
        store = self._store.renewer()
        if store is None:
            await self._rounds(self._store, lambda tenure: tenure.tell())
            return
        loop = asyncio.get_running_loop()

        def tell(tenure: Tenure) -> None:
            loop.call_soon_threadsafe(tenure.tell)

        pulse = asyncio.ensure_future(self._show_pulse())
        try:
            await run_in_thread("heartbeat", lambda: self._rounds(store, tell))
        finally:
            pulse.cancel()

    async def _show_pulse(self) -> None:
        while True:
            self._pulse = self._clock.monotonic()
            await self._clock.sleep(_PULSE)

    async def _rounds(self, store: LeaseStore, tell: Callable[[Tenure], None]) -> None:
        gate = asyncio.Semaphore(_AT_ONCE)
        in_thread = store is not self._store
        due = self._clock.monotonic()
        try:
            while True:
                # By the clock, not after the work: a slow store must not stretch the interval.
                due = max(due + PASS_INTERVAL, self._clock.monotonic())
                await self._clock.sleep(due - self._clock.monotonic())
                if in_thread and self._main_loop_stands():
                    continue
                with self._lock:
                    tenures = list(self._tenures)
                await asyncio.gather(
                    self._beat(store),
                    *(self._renew(store, gate, tenure, tell) for tenure in tenures),
                )
        finally:
            if in_thread:
                await store.close()

    def _main_loop_stands(self) -> bool:
        stands = self._clock.monotonic() - self._pulse > self._stall_timeout
        if stands and not self._stalled:
            logger.critical(
                "the event loop has not moved for %g s: its leases are not renewed any more, and "
                "other instances take its shards. Look for a handler that blocks",
                self._stall_timeout,
            )
        elif self._stalled and not stands:
            logger.warning("the event loop moves again: leases are renewed and taken as before")
        self._stalled = stands
        return stands

    async def _beat(self, store: LeaseStore) -> None:
        member = self._member
        if not member.subscriptions:
            return
        try:
            await store.beat(member, duration=MEMBER_DURATION)
            self.error = None
            if not self._member.subscriptions:
                # It left meanwhile, and the row that it removed may be there again by this.
                await store.leave(member.nonce)
        except Exception as error:  # noqa: BLE001 - a store's failures are its own
            self._failed("the row of this member", error)

    async def _renew(
        self,
        store: LeaseStore,
        gate: asyncio.Semaphore,
        tenure: Tenure,
        tell: Callable[[Tenure], None],
    ) -> None:
        async with gate:
            sent = self._clock.monotonic()
            if tenure.reason is not None:
                return
            try:
                await store.renew(tenure.lease)
            except LeaseLost as error:
                if tenure.end(str(error)):
                    tell(tenure)
            except Exception as error:  # noqa: BLE001 - a store's failures are its own
                key = tenure.lease.key
                self._failed(f"the lease of {key.row}", error, key)
                if self._clock.monotonic() >= tenure.until and tenure.end(
                    f"its lease ran out unrenewed: {shown(error)}", ran_out=True
                ):
                    tell(tenure)
            else:
                tenure.prolong(sent + LEASE_DURATION - _MARGIN)

    def _failed(self, what: str, error: Exception, key: LeaseKey | None = None) -> None:
        self.error = kind(error)
        count = self._log.due()
        if count is not None:
            logger.warning(
                "cannot renew %s (%d failure(s)), trying again: %s",
                what,
                count,
                shown(error),
                extra=fields_of(error) if key is None else fields(key.stream, key.shard_id),
            )
