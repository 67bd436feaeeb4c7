"""No task dies in silence, and none outlives its supervisor."""

from __future__ import annotations

import asyncio
import logging

import pytest

from ruststream_kinesis.errors import KinesisError
from ruststream_kinesis.supervisor import Supervisor
from tests.support.world import until


@pytest.fixture
def failures() -> list[BaseException]:
    return []


@pytest.fixture
def supervisor(failures: list[BaseException]) -> Supervisor:
    return Supervisor(failures.append)


async def forever() -> None:
    await asyncio.Event().wait()


async def fail(error: BaseException) -> None:
    raise error


async def test_a_task_runs_under_its_name_until_it_ends(
    supervisor: Supervisor, failures: list[BaseException]
):
    end = asyncio.Event()
    task = supervisor.spawn("reader[orders/shardId-0]", end.wait())
    assert task.get_name() == "reader[orders/shardId-0]"
    assert supervisor.running == ["reader[orders/shardId-0]"]

    end.set()
    await task
    await until(lambda: supervisor.running == [])

    assert failures == []


@pytest.mark.parametrize("kind", [RuntimeError, KinesisError, asyncio.InvalidStateError])
async def test_a_task_that_fails_is_reported_with_its_name(
    supervisor: Supervisor,
    failures: list[BaseException],
    caplog: pytest.LogCaptureFixture,
    kind: type[Exception],
):
    error = kind("it broke")

    supervisor.spawn("worker[orders/0]", fail(error))
    await until(lambda: bool(failures))

    assert failures == [error]
    assert "worker[orders/0]" in caplog.text
    assert "it broke" in caplog.text


async def test_a_base_exception_is_a_failure_too(
    supervisor: Supervisor, failures: list[BaseException]
):
    class Odd(BaseException):
        pass

    supervisor.spawn("worker", fail(Odd()))
    await until(lambda: bool(failures))

    assert isinstance(failures[0], Odd)


async def test_a_task_that_somebody_else_cancels_is_a_failure_not_silence(
    supervisor: Supervisor, failures: list[BaseException]
):
    task = supervisor.spawn("worker[orders/0]", forever())
    await asyncio.sleep(0)

    task.cancel()
    await until(lambda: bool(failures))

    assert isinstance(failures[0], KinesisError)
    assert "worker[orders/0]" in str(failures[0])


async def test_a_task_that_the_supervisor_cancels_is_none(
    supervisor: Supervisor, failures: list[BaseException]
):
    tasks = [supervisor.spawn(f"t{n}", forever()) for n in range(3)]
    await asyncio.sleep(0)

    await supervisor.cancel(tasks[:2])
    assert supervisor.running == ["t2"]
    await supervisor.close()

    assert supervisor.running == []
    assert failures == []
    assert all(task.cancelled() for task in tasks)


async def test_a_task_that_fails_while_it_is_cancelled_is_still_reported(
    supervisor: Supervisor, failures: list[BaseException]
):
    async def fail_at_the_end() -> None:
        try:
            await forever()
        finally:
            raise RuntimeError("at the end")

    task = supervisor.spawn("t", fail_at_the_end())
    await asyncio.sleep(0)
    await supervisor.cancel([task])

    assert [str(error) for error in failures] == ["at the end"]


async def test_tasks_that_finish_in_time_are_not_cancelled(supervisor: Supervisor):
    end = asyncio.Event()
    task = supervisor.spawn("t", end.wait())
    asyncio.get_running_loop().call_soon(end.set)

    assert await supervisor.finish([task], 10) == []
    assert task.result() is True


async def test_tasks_that_take_longer_are_cancelled_and_named(supervisor: Supervisor):
    quick = supervisor.spawn("quick", asyncio.sleep(0))
    late = [supervisor.spawn(name, forever()) for name in ("b", "a")]

    assert await supervisor.finish([*late, quick], 0.001) == ["a", "b"]
    assert supervisor.running == []
    assert not quick.cancelled()


async def test_nothing_to_wait_for_is_quick(supervisor: Supervisor):
    done = supervisor.spawn("t", asyncio.sleep(0))
    await done

    assert await supervisor.finish([], 10) == []
    assert await supervisor.finish([done], 10) == []
    await supervisor.cancel([done])
    await supervisor.close()


async def test_a_task_that_ignores_its_cancellation_is_named_and_holds_nobody_up(
    supervisor: Supervisor, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.ERROR)
    release = asyncio.Event()

    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    task = supervisor.spawn("stubborn", stubborn())
    await asyncio.sleep(0)

    await supervisor.cancel([task], grace=0.001)

    assert "stubborn" in caplog.text
    assert "does not react" in caplog.text
    release.set()
    await task
