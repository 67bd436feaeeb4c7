"""The clients of a lease table: one for each loop, and how each signs."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from typing import Any

import aiobotocore.session
import pytest
from aiobotocore.credentials import AioCredentials
from botocore.exceptions import BotoCoreError

from ruststream_kinesis.clients import _snapshots
from ruststream_kinesis.clock import SystemClock
from ruststream_kinesis.errors import LeaseTableUnreachable, NotConnected
from ruststream_kinesis.leases.dynamo_table import DynamoTable
from tests.support.scripted import held
from tests.support.scripted_table import ScriptedTable
from tests.support.tables import settings


@pytest.fixture
async def server() -> AsyncIterator[ScriptedTable]:
    async with ScriptedTable() as scripted:
        yield scripted


class Counting(aiobotocore.session.AioSession):
    """Counts the clients made; the first ones fail."""

    def __init__(self, failures: int = 0) -> None:
        super().__init__()
        self.clients = 0
        self.failures = failures

    async def _create_client(self, *args: Any, **more: Any) -> Any:
        if self.failures:
            self.failures -= 1
            raise BotoCoreError
        self.clients += 1
        make: Any = super()._create_client  # type: ignore[misc]  # the stubs know no private name
        return await make(*args, **more)


@contextlib.asynccontextmanager
async def another_loop() -> AsyncIterator[asyncio.AbstractEventLoop]:
    """Run a loop in a thread, until the block ends."""
    made: asyncio.Future[asyncio.AbstractEventLoop] = asyncio.get_running_loop().create_future()
    end = threading.Event()

    async def live() -> None:
        made.get_loop().call_soon_threadsafe(made.set_result, asyncio.get_running_loop())
        await asyncio.to_thread(end.wait)

    thread = threading.Thread(target=lambda: asyncio.run(live()))
    thread.start()
    try:
        yield await made
    finally:
        end.set()
        await asyncio.to_thread(thread.join)


async def test_calls_that_come_together_share_one_client(server: ScriptedTable):
    session = Counting(failures=1)
    table = DynamoTable("leases", settings(server.url, session=session), SystemClock())
    with pytest.raises(LeaseTableUnreachable, match="cannot connect: BotoCoreError"):
        await table.get("k")
    await asyncio.gather(*(table.get("k") for _ in range(20)))
    assert session.clients == 1
    assert len(server.calls("DescribeTable")) == 1
    await table.close()


async def test_a_table_that_was_closed_is_opened_again_by_whoever_still_uses_it(
    server: ScriptedTable,
):
    """Two applications may share a store, and one may be started again."""
    session = Counting()
    table = DynamoTable("leases", settings(server.url, session=session), SystemClock())
    await table.get("k")
    await table.close()
    await table.close()
    await table.get("k")
    assert session.clients == 2
    hold = held()
    server.on("GetItem", [hold, hold])
    reading = asyncio.create_task(table.get("k"))
    await hold.reached.wait()
    await table.close()
    hold.release()
    assert await reading is None
    await table.close()


class Known(aiobotocore.session.AioSession):
    """Has credentials of its own."""

    async def get_credentials(self) -> Any:  # type: ignore[override]  # as aiobotocore's own
        """Temporary ones."""
        return AioCredentials("KEY", "secret", "token")


async def test_another_loop_has_a_client_of_its_own_that_signs_alike_and_is_closed_with_the_rest(
    server: ScriptedTable,
):
    clients = settings(server.url, session=Known(), test_credentials=False)
    table = DynamoTable("leases", clients, SystemClock())
    await table.get("k")
    end = threading.Event()

    async def work() -> None:
        await table.get("k")
        # Beside the loop, which has to run for the close.
        await asyncio.to_thread(end.wait)

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    mine, other = await server.seen("GetItem", 2)
    assert len(table._clients._clients) == 2
    await table.close()
    end.set()
    await asyncio.to_thread(thread.join)
    for call in (mine, other):
        assert "Credential=KEY/" in call.headers["Authorization"]
        headers = {name.lower(): value for name, value in call.headers.items()}
        assert headers["x-amz-security-token"] == "token"


class Renewing:
    """A session whose credentials count how often they are asked for, and on which loop."""

    def __init__(self) -> None:
        self.asked: list[asyncio.AbstractEventLoop] = []
        self.failing = False

    async def get_credentials(self) -> Any:
        """Ourselves: an object with frozen credentials."""
        return self

    async def get_frozen_credentials(self) -> Any:
        """As of a refreshable object."""
        from botocore.credentials import ReadOnlyCredentials  # noqa: PLC0415

        self.asked.append(asyncio.get_running_loop())
        if self.failing:
            raise ConnectionError("no metadata service")
        return ReadOnlyCredentials("key", "secret", "token", None)


async def test_case_l1_another_loop_signs_while_the_owning_loop_is_blocked(
    monkeypatch: pytest.MonkeyPatch,
):
    """As by a handler: it must not cost the lease."""
    monkeypatch.setattr("ruststream_kinesis.clients._SNAPSHOT_AGE", 0.0)
    session, main = Renewing(), asyncio.get_running_loop()
    there, go_on, done = threading.Event(), threading.Event(), threading.Event()
    signed: list[Any] = []

    async def sign() -> None:
        credentials = _snapshots(session, main)
        signed.append(await credentials.get_frozen_credentials())
        there.set()
        await asyncio.to_thread(go_on.wait)
        signed.append(await credentials.get_frozen_credentials())
        done.set()

    thread = threading.Thread(target=lambda: asyncio.run(sign()))
    thread.start()
    await asyncio.to_thread(there.wait)
    go_on.set()
    # Blocks the loop that refreshes, until the other one has signed.
    assert done.wait(10)
    await asyncio.to_thread(thread.join)
    assert signed[0] == signed[1]
    assert set(session.asked) == {main}


async def test_a_snapshot_is_used_without_asking_and_after_a_refresh_that_failed(
    monkeypatch: pytest.MonkeyPatch,
):
    session = Renewing()
    credentials = _snapshots(session, asyncio.get_running_loop())
    first = await credentials.get_frozen_credentials()
    assert await credentials.get_frozen_credentials() == first
    assert len(session.asked) == 1
    monkeypatch.setattr("ruststream_kinesis.clients._SNAPSHOT_AGE", 0.0)
    session.failing = True
    assert await credentials.get_frozen_credentials() == first
    assert len(session.asked) == 2


async def test_the_next_loop_that_asks_owns_the_credentials_of_one_that_has_ended(
    server: ScriptedTable,
):
    asked: list[asyncio.AbstractEventLoop] = []

    class Watched(Known):
        async def get_credentials(self) -> Any:  # type: ignore[override]  # as aiobotocore's own
            asked.append(asyncio.get_running_loop())
            return await super().get_credentials()

    clients = settings(server.url, session=Watched(), test_credentials=False)
    table = DynamoTable("leases", clients, SystemClock())
    async with another_loop() as owner:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(table.get("k"), owner))
        assert set(asked) == {owner}
    await table.get("k")
    assert set(asked) == {owner, asyncio.get_running_loop()}
    await table.close()


async def test_a_loop_that_has_ended_gives_no_snapshot_and_takes_a_bound_one_with_it(
    monkeypatch: pytest.MonkeyPatch,
):
    session = Renewing()
    async with another_loop() as owner:
        free, bound = _snapshots(session, owner), _snapshots(session, owner, bound=True)
        last = await free.get_frozen_credentials()
        assert await bound.get_frozen_credentials() == last
    for ended in (bound, _snapshots(session, owner)):
        with pytest.raises(NotConnected, match="loop of the service"):
            await ended.get_frozen_credentials()
    assert await free.get_frozen_credentials() == last
    monkeypatch.setattr("ruststream_kinesis.clients._SNAPSHOT_AGE", 0.0)
    assert await free.get_frozen_credentials() == last


async def test_a_loop_that_ends_while_it_is_asked_cancels_nobody_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
):
    """A loop that ends cancels what runs in it; a lease or a publish that signs is not meant."""
    monkeypatch.setattr("ruststream_kinesis.clients._SNAPSHOT_AGE", 0.0)
    monkeypatch.setattr("ruststream_kinesis.clients._SNAPSHOT_PATIENCE", 10.0)
    reached = threading.Event()

    class Hanging(Renewing):
        async def get_frozen_credentials(self) -> Any:
            if self.failing:
                reached.set()
                await asyncio.Event().wait()
            return await super().get_frozen_credentials()

    session = Hanging()
    async with another_loop() as owner:
        known = _snapshots(session, owner)
        last = await known.get_frozen_credentials()
        session.failing = True
        first = asyncio.create_task(_snapshots(session, owner).get_frozen_credentials())
        later = asyncio.create_task(known.get_frozen_credentials())
        await asyncio.to_thread(reached.wait)
    with pytest.raises(NotConnected):
        await first
    assert await later == last
