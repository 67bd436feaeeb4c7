"""`TableLeaseStore`: leases as conditional writes to the rows of a table, whatever table it is.

Invariants:

* Every write is conditional: on the acquisition that makes it, or, for an acquisition, on the very
  owner and counter that were watched. So of all who ask at once one gets the shard, and whoever was
  taken for dead and is not loses nothing but the lease.
* A write whose answer was lost is made again. Either it was not applied, and is now, or its
  condition fails and the row that comes back says whose it is: if it is ours, it succeeded.
* Whether a lease is free is judged by watching (`sightings.py`); the expiry that we write is for the
  Rust sibling, and is never read.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from ruststream_kinesis.clock import Clock, SystemClock
from ruststream_kinesis.errors import (
    LeaseLost,
    LeaseRowError,
    LeaseTableError,
    LeaseTableUnreachable,
)
from ruststream_kinesis.leases import rows
from ruststream_kinesis.leases.base import (
    LeaseKey,
    LeaseState,
    LeaseStore,
    Member,
    Opening,
    Survey,
    subscription_name,
    token,
)
from ruststream_kinesis.leases.notebook import Notebook, Scan
from ruststream_kinesis.leases.rows import LeaseRow, MemberRow
from ruststream_kinesis.leases.sightings import Look
from ruststream_kinesis.leases.table import Change, Check, Outcome, Row, Table
from ruststream_kinesis.position import KinesisPosition
from ruststream_kinesis.wording import fields_of, shown

__all__ = ["TableLeaseStore"]

logger = logging.getLogger("ruststream_kinesis")

# Rows of members that are long gone are removed a few at a time: nobody waits for it.
_BURIALS = 5
# Seconds after which a write is not made again here: a table that tries by itself took longer, and
# the caller's time is nearly up.
_PATIENCE = 2.0


class TableLeaseStore:
    """A `LeaseStore` over a table of rows with conditional writes.

    Args:
        table: Where the rows are.
        clock: Measures how long a row has not changed; its wall clock is written for the sibling.
        notebook: Shared with the store of another thread of this process.
    """

    def __init__(
        self, table: Table, *, clock: Clock | None = None, notebook: Notebook | None = None
    ) -> None:
        self._table = table
        self._clock: Clock = clock or SystemClock()
        self._notebook = notebook or Notebook()
        self._shared_table = notebook is not None
        self._scanning: tuple[float, asyncio.Task[Scan]] | None = None
        self._scans: set[asyncio.Task[Scan]] = set()
        """All that run: one that hangs may be overtaken by the next."""

    @property
    def shared(self) -> bool:
        """Whoever knows the table uses it."""
        return True

    async def open(self) -> None:
        """Makes sure that the table can be used, or creates it; once more does nothing.

        Raises:
            LeaseTableError: It cannot be used; says why and what to do.
        """
        await self._table.open()

    async def close(self) -> None:
        """Closes the connections of every event loop; a later call opens them again.

        The store of a renewer closes those of the running loop.
        """
        here = asyncio.get_running_loop()
        scans = {scan for scan in list(self._scans) if scan.get_loop() is here}
        for scan in scans:
            scan.cancel()
        if scans:
            await asyncio.wait(scans)
        await self._table.close(everywhere=not self._shared_table)

    def pages(self) -> AsyncIterator[Sequence[tuple[str, Row]]]:
        """All rows of the table as they stand there, for who only looks; see `leases/rows.py`."""
        return self._table.pages()

    # -- leases ------------------------------------------------------------------------------------

    async def acquire(
        self, key: LeaseKey, owner_id: str, *, duration: float, member: str = ""
    ) -> LeaseState | None:
        """Takes a shard that is free.

        Raises:
            LeaseRowError: Its row cannot be understood, so it is not known where to read.
            LeaseTableError: The table cannot be reached.
        """
        row, look = await self._get(key.row)
        if row is None:
            condition = [Check("no row")]
        else:
            state = self._notebook.lease(key, row, look)
            # Ours too, where an earlier attempt was applied and never answered: nobody has it.
            ours = self._notebook.is_unheard(key.row, state.owner) or (
                member != "" and state.member == member
            )
            if not state.free and not ours:
                return None
            condition = LeaseRow(key, row).as_seen
        owner = f"{owner_id}#{token(member, secrets.token_hex(8))}"
        change = rows.acquired(owner, duration, self._clock.time())
        try:
            outcome, look = await self._update(key.row, change, condition)
        except (LeaseTableError, asyncio.CancelledError):
            self._notebook.unheard(key.row, owner)
            raise
        if outcome.row is None:
            return None
        ours = outcome.applied or outcome.row.get(rows.OWNER) == owner
        state = self._notebook.lease(key, outcome.row, look, written=ours)
        if not ours:
            return None
        self._notebook.hold(key.row, owner, duration)
        return state

    async def renew(self, held: LeaseState) -> None:
        """Prolongs the lease by its duration."""
        change = rows.renewed(self._notebook.period(held.owner), self._clock.time())
        outcome, look = await self._update(held.key.row, change, [rows.held_by(held.owner)])
        self._seen(held.key, outcome.row, look, written=outcome.applied)
        if not outcome.applied:
            raise self._lost(held, outcome.row)

    async def checkpoint(
        self,
        held: LeaseState,
        checkpoint: str | None,
        *,
        number: int,
        resume_from: KinesisPosition | None = None,
    ) -> None:
        """Stores checkpoint or position, and prolongs the lease with it."""
        row: Row | None
        if checkpoint is None and resume_from is None:
            row, look = await self._get(held.key.row)
            self._seen(held.key, row, look, written=False)
        else:
            until = (self._clock.time(), self._notebook.period(held.owner))
            change = rows.stored(checkpoint, resume_from, number, until=until)
            condition = [rows.held_by(held.owner), rows.newer_than_stored(number)]
            outcome, look = await self._update(held.key.row, change, condition)
            self._seen(held.key, outcome.row, look, written=outcome.applied)
            row = outcome.row
        # Ours, and not applied: this number or a later one is stored.
        if row is None or row.get(rows.OWNER) != held.owner:
            raise self._lost(held, row)

    async def release(
        self,
        held: LeaseState,
        *,
        checkpoint: str | None = None,
        number: int = 0,
        resume_from: KinesisPosition | None = None,
        successor: str | None = None,
    ) -> None:
        """Frees the shard, with its final checkpoint or position in the same write."""
        mine = rows.held_by(held.owner)
        final: Change | None = None
        condition = [mine]
        if checkpoint is not None or resume_from is not None:
            final = rows.stored(checkpoint, resume_from, number, until=None)
            condition.append(rows.newer_than_stored(number))
        outcome, look = await self._update(held.key.row, rows.released(final, successor), condition)
        if final is not None and not outcome.applied and mine.holds(outcome.row):
            # A later checkpoint is stored already: it stays, and the lease goes.
            outcome, look = await self._update(held.key.row, rows.released(None, successor), [mine])
        self._seen(held.key, outcome.row, look, written=outcome.applied)
        self._notebook.let_go(held.owner)

    async def read(self, key: LeaseKey) -> LeaseState | None:
        """The row as it is.

        Raises:
            LeaseRowError: It cannot be understood.
        """
        row, look = await self._get(key.row)
        return None if row is None else self._notebook.lease(key, row, look)

    async def delete(self, key: LeaseKey) -> None:
        """Removes a row that nobody holds, unless somebody wrote it meanwhile."""
        row, look = await self._get(key.row)
        if row is None:
            return
        lease = LeaseRow(key, row)
        if self._notebook.lease(key, row, look).free:
            await self._delete(key.row, lease.as_seen)

    # -- everything at once ------------------------------------------------------------------------

    async def leases(self, stream: str, group: str | None = None) -> list[LeaseState]:
        """The rows of a stream, freshly read; those that cannot be understood are left out."""
        return list((await self.survey(stream, group)).leases)

    async def survey(
        self, stream: str, group: str | None = None, *, max_age: float = 0.0
    ) -> Survey:
        """The rows of a stream and the members that read it, from a scan shared by all who ask."""
        name = subscription_name(stream, group)
        now = self._clock.monotonic()
        if max_age <= 0:
            return self._notebook.survey(await self._scan(now), name)
        view = self._notebook.view(name, now - max_age)
        if view is not None:
            return view
        task = self._shared_scan(now, max_age)
        try:
            # Shielded: one caller that is cancelled does not take the scan from the others.
            return self._notebook.survey(await asyncio.shield(task), name)
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if not task.cancelled() or (me is not None and me.cancelling()):
                raise
            # Not a cancellation of the caller, which would end for it: it may look again.
            raise LeaseTableUnreachable(
                f"lease table {self._table.name!r}: an application that uses the same store closed "
                "it at this moment",
                table=self._table.name,
                code="Closed",
            ) from None

    def _shared_scan(self, now: float, max_age: float) -> asyncio.Task[Scan]:
        """The scan on its way, if it is recent enough and runs on this loop, or a new one."""
        loop, running = asyncio.get_running_loop(), self._scanning
        if running is not None:
            asked, task = running
            if not task.done() and asked >= now - max_age and task.get_loop() is loop:
                return task
        task = loop.create_task(self._scan(now), name="lease-table-scan")
        self._scans.add(task)
        task.add_done_callback(self._scans.discard)
        task.add_done_callback(_heard)
        self._scanning = (now, task)
        return task

    async def _scan(self, now: float) -> Scan:
        scan, whole = self._notebook.begin(now), False
        try:
            asked = now
            async for page in self._table.pages():
                answered = self._clock.monotonic()
                self._notebook.page(scan, page, Look(asked, answered))
                asked = answered
            self._notebook.finish(scan)
            whole = True
        finally:
            if not whole:
                self._notebook.abandon()
        await self._bury(scan.buried)
        return scan

    async def _bury(self, members: Sequence[MemberRow]) -> None:
        """Removes rows of members that ended without leaving: nobody else does."""
        for found in members[:_BURIALS]:
            try:
                await self._delete(rows.member_key(found.nonce), found.as_seen)
            except LeaseTableError as error:
                logger.debug("cannot remove the row of member %s: %s", found.nonce, shown(error))
                return

    # -- members -----------------------------------------------------------------------------------

    async def beat(self, member: Member, *, duration: float) -> None:
        """Keeps a member alive.

        Raises:
            LeaseRowError: Its row belongs to another owner.
        """
        change, condition = rows.beaten(member, duration)
        key = rows.member_key(member.nonce)
        outcome, look = await self._update(key, change, condition)
        if not outcome.applied or outcome.row is None:
            raise LeaseRowError(
                f"row {key!r} of lease table {self._table.name!r} belongs to another owner than "
                f"{member.owner_id!r}"
            )
        self._notebook.member(member.nonce, outcome.row, look)

    async def leave(self, nonce: str) -> None:
        """Removes a member's row."""
        await self._delete(rows.member_key(nonce), [Check("row")])

    def renewer(self) -> LeaseStore | None:
        """The same table for another event loop; what is written there is known here."""
        return TableLeaseStore(self._table, clock=self._clock, notebook=self._notebook)

    # -- openings ----------------------------------------------------------------------------------

    async def opening(self, stream: str, group: str | None, first: Opening) -> Opening:
        """Keeps the first opening of a stream.

        Raises:
            LeaseRowError: The stored one cannot be understood.
        """
        key = rows.opening_key(stream, group)
        row, _ = await self._get(key)
        mark = secrets.token_hex(8)
        if row is None:
            new = rows.opening_row(first, mark)
            outcome = await self._certain(lambda: self._table.put(key, new))
            row = new if outcome.row is None else outcome.row
        stored, by = rows.opening_of(key, row)
        return first if by == mark else stored

    # -- calls of the table ------------------------------------------------------------------------

    async def _get(self, key: str) -> tuple[Row | None, Look]:
        asked, noted = self._clock.monotonic(), self._notebook.now()
        row = await self._table.get(key)
        if row is None:
            self._notebook.gone(key, since=noted)
        return row, Look(asked, self._clock.monotonic())

    async def _update(
        self, key: str, change: Change, condition: Sequence[Check]
    ) -> tuple[Outcome, Look]:
        asked = self._clock.monotonic()
        outcome = await self._certain(lambda: self._table.update(key, change, condition))
        return outcome, Look(asked, self._clock.monotonic())

    async def _delete(self, key: str, condition: Sequence[Check]) -> None:
        outcome = await self._certain(lambda: self._table.delete(key, condition))
        if outcome.applied or outcome.row is None:
            self._notebook.gone(key)

    async def _certain(self, write: Callable[[], Awaitable[Outcome]]) -> Outcome:
        """A write, once more if its answer was lost: the second tells what became of the first."""
        asked = self._clock.monotonic()
        try:
            try:
                return await write()
            except LeaseTableError as error:
                if not error.uncertain or self._clock.monotonic() - asked > _PATIENCE:
                    raise
                return await write()
        except LeaseTableError as error:
            if error.uncertain:
                self._notebook.doubt()
            raise
        except asyncio.CancelledError:
            # The caller's time is up; the write may be on its way all the same.
            self._notebook.doubt()
            raise

    def _seen(self, key: LeaseKey, row: Row | None, look: Look, *, written: bool) -> None:
        if row is None:
            return
        try:
            self._notebook.lease(key, row, look, written=written)
        except LeaseRowError as error:
            # Whoever holds the shard does not need what somebody spoiled in its row.
            logger.warning("%s", error, extra=fields_of(error))

    def _lost(self, held: LeaseState, row: Row | None) -> LeaseLost:
        self._notebook.let_go(held.owner)
        owner = None if row is None else row.get(rows.OWNER)
        return LeaseLost(
            f"the lease of {held.owner} is lost" + (f"; it is held by {owner}" if owner else ""),
            stream=held.key.stream,
            shard_id=held.key.shard_id,
        )


def _heard(task: asyncio.Task[Scan]) -> None:
    """Nobody may be left to hear how a scan failed; the next caller makes another."""
    if not task.cancelled():
        task.exception()
