"""What every lease store must do with the checkpoints and positions it is given."""

from __future__ import annotations

import pytest

from ruststream_kinesis import KinesisPosition, LeaseStore
from ruststream_kinesis.errors import LeaseLost
from ruststream_kinesis.leases import SHARD_END
from ruststream_kinesis.testing import ManualClock
from tests.support.leasing import HORIZON, KEY, POSITIONS, row, take, take_over


class CheckpointContract:
    """The promises of `LeaseStore` about checkpoints; the fixtures are those of its contract."""

    # -- checkpoints ---------------------------------------------------------------------------

    async def test_a_checkpoint_is_there_for_whoever_reads_it(
        self, store: LeaseStore, another: LeaseStore
    ):
        lease = await take(store)

        await store.checkpoint(lease, "49590338271490256608559692538361571095921", number=1)

        assert (await row(another)).checkpoint == "49590338271490256608559692538361571095921"

    async def test_a_write_that_arrives_late_undoes_nothing(self, store: LeaseStore):
        """Case W1: the number decides, and a lower one is ignored without an error."""
        lease = await take(store)
        await store.checkpoint(lease, "5", number=3)

        await store.checkpoint(lease, "2", number=2)

        assert (await row(store)).checkpoint == "5"

    async def test_numbers_decide_never_the_text_of_the_checkpoint(self, store: LeaseStore):
        """Case W3: "100" is the smaller text; and a rewind stores what is really smaller."""
        lease = await take(store)
        await store.checkpoint(lease, "99", number=1)
        await store.checkpoint(lease, "100", number=2)
        assert (await row(store)).checkpoint == "100"

        await store.checkpoint(lease, "7", number=3)

        assert (await row(store)).checkpoint == "7"

    async def test_numbers_start_anew_with_each_acquisition(self, store: LeaseStore):
        first = await take(store)
        await store.checkpoint(first, "5", number=50)
        await store.release(first)
        second = await take(store)

        await store.checkpoint(second, "6", number=1)

        assert (await row(store)).checkpoint == "6"

    async def test_numbers_start_anew_with_a_lease_that_was_left(
        self, store: LeaseStore, another: LeaseStore, clock: ManualClock
    ):
        await store.checkpoint(await take(store), "5", number=50)
        second = await take_over(clock, another)

        await another.checkpoint(second, "6", number=1)

        assert (await row(another)).checkpoint == "6"

    async def test_the_end_of_a_shard_is_a_checkpoint(self, store: LeaseStore):
        lease = await take(store)

        await store.checkpoint(lease, SHARD_END, number=1)

        assert (await row(store)).finished
        assert [each.finished for each in await store.leases("orders")] == [True]

    async def test_a_release_carries_the_final_checkpoint(self, store: LeaseStore):
        lease = await take(store)
        await store.checkpoint(lease, "5", number=1)

        await store.release(lease, checkpoint="6", number=2)

        assert (await row(store)).checkpoint == "6"
        assert (await row(store)).owner is None

    async def test_a_release_without_checkpoint_keeps_the_stored_one(self, store: LeaseStore):
        lease = await take(store)
        await store.checkpoint(lease, "5", number=1)

        await store.release(lease, checkpoint=None, number=2)

        assert (await row(store)).checkpoint == "5"

    async def test_a_release_that_is_late_frees_the_shard_and_undoes_nothing(
        self, store: LeaseStore
    ):
        lease = await take(store)
        await store.checkpoint(lease, "5", number=3)

        await store.release(lease, checkpoint="2", number=2)

        assert (await row(store)).checkpoint == "5"
        assert (await row(store)).owner is None

    # -- where a rewind went -------------------------------------------------------------------

    @pytest.mark.parametrize("position", POSITIONS, ids=str)
    async def test_a_position_is_stored_beside_the_checkpoint(
        self, store: LeaseStore, another: LeaseStore, position: KinesisPosition
    ):
        lease = await take(store)
        await store.checkpoint(lease, "5", number=1)
        await store.checkpoint(lease, None, number=2, resume_from=position)

        stored = await another.read(KEY)
        assert stored is not None
        assert (stored.checkpoint, stored.resume_from) == ("5", position)
        assert [each.resume_from for each in await another.leases("orders")] == [position]

    async def test_a_position_is_there_without_a_checkpoint_and_for_the_next_owner(
        self, store: LeaseStore
    ):
        lease = await take(store)
        await store.checkpoint(lease, None, number=1, resume_from=HORIZON)
        await store.release(lease)

        again = await take(store)
        assert (again.checkpoint, again.resume_from) == (None, HORIZON)

    @pytest.mark.parametrize("checkpoint", ["5", "6", SHARD_END])
    async def test_the_next_checkpoint_makes_a_position_void_whatever_it_is(
        self, store: LeaseStore, checkpoint: str
    ):
        lease = await take(store)
        await store.checkpoint(lease, "5", number=1)
        await store.checkpoint(lease, None, number=2, resume_from=HORIZON)
        await store.checkpoint(lease, checkpoint, number=3)

        stored = await row(store)
        assert (stored.checkpoint, stored.resume_from) == (checkpoint, None)

    async def test_a_checkpoint_that_arrives_late_does_not_undo_a_rewind(self, store: LeaseStore):
        lease = await take(store)
        await store.checkpoint(lease, None, number=2, resume_from=HORIZON)
        await store.checkpoint(lease, "5", number=1)

        stored = await row(store)
        assert (stored.checkpoint, stored.resume_from) == (None, HORIZON)

    async def test_a_release_carries_a_position_or_keeps_the_stored_one(self, store: LeaseStore):
        first = await take(store)
        await store.release(first, checkpoint="5", number=1)
        second = await take(store)
        await store.release(second, number=1, resume_from=HORIZON)
        third = await take(store)
        assert (third.checkpoint, third.resume_from) == ("5", HORIZON)
        await store.release(third)

        stored = await row(store)
        assert (stored.checkpoint, stored.resume_from) == ("5", HORIZON)

    async def test_a_finished_shard_that_was_rewound_is_not_finished(self, store: LeaseStore):
        lease = await take(store)
        await store.release(lease, checkpoint=SHARD_END, number=1)
        assert (await row(store)).finished
        lease = await take(store)
        await store.release(lease, number=1, resume_from=HORIZON)

        stored = await row(store)
        assert stored.checkpoint == SHARD_END
        assert not stored.finished

    async def test_a_stale_owner_rewinds_nothing(
        self, clock: ManualClock, store: LeaseStore, another: LeaseStore
    ):
        lease = await take(store)
        await take_over(clock, another)

        with pytest.raises(LeaseLost):
            await store.checkpoint(lease, None, number=1, resume_from=HORIZON)
        await store.release(lease, number=2, resume_from=HORIZON)
        assert (await row(another)).resume_from is None

    async def test_every_write_moves_the_counter_by_one(self, store: LeaseStore):
        lease = await take(store)
        counters = [lease.counter]
        for write in (
            store.renew(lease),
            store.checkpoint(lease, "5", number=1),
            store.renew(lease),
            store.release(lease, checkpoint="6", number=2),
        ):
            await write
            counters.append((await row(store)).counter)

        first = counters[0]
        assert counters == [first, first + 1, first + 2, first + 3, first + 4]
        assert (await take(store)).counter == first + 5
