"""`Pending`, the future that `publish_nowait` gives where there is a batch, beside one of asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from ruststream_kinesis._core import Intake, Maker, Pending, SpreadKeys, settle
from ruststream_kinesis.errors import PublishError
from ruststream_kinesis.limits import check_explicit_hash_key
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.transport import PutResult

if TYPE_CHECKING:
    from collections.abc import Callable

_PUT = PutResult("shardId-0", "1")

Future = Any
"""One of both: what is tested is that they do the same."""


def _pending(key: str | None = None, wanted: Callable[[], bool] | None = None) -> Pending:
    return Pending(asyncio.get_running_loop(), (b"x", key or "k", None), 2, key, wanted=wanted)


def _asyncio() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


both = pytest.mark.parametrize("make", [_pending, _asyncio])


@both
async def test_it_is_awaited_before_and_after_it_is_decided(make: Callable[[], Future]) -> None:
    future = make()
    waiting = [asyncio.create_task(asyncio.wait_for(future, 5)) for _ in range(2)]
    await asyncio.sleep(0)
    assert asyncio.isfuture(future)
    assert not future.done()
    future.set_result(_PUT)
    assert (future.done(), future.cancelled(), future.exception()) == (True, False, None)
    assert [await future, *await asyncio.gather(*waiting, future)] == [_PUT] * 4
    with pytest.raises(asyncio.InvalidStateError):
        future.set_result(_PUT)
    with pytest.raises(asyncio.InvalidStateError):
        future.set_exception(ValueError())
    assert not future.cancel()


@both
async def test_an_error_is_raised_from_every_await(make: Callable[[], Future]) -> None:
    future, error = make(), PublishError("no")
    waiting = asyncio.create_task(asyncio.wait({future}))
    await asyncio.sleep(0)
    future.set_exception(error)
    done, _ = await waiting
    assert done == {future}
    for _ in range(2):
        with pytest.raises(PublishError) as raised:
            await future
        assert raised.value is error
    assert future.exception() is error
    assert list(await asyncio.gather(future, return_exceptions=True)) == [error]


@both
async def test_it_may_be_cancelled_and_who_awaits_it_is(make: Callable[[], Future]) -> None:
    future = make()
    task = asyncio.create_task(asyncio.wait_for(future, 5))
    await asyncio.sleep(0)
    assert future.cancel("enough")
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (future.done(), future.cancelled()) == (True, True)
    with pytest.raises(asyncio.CancelledError, match="enough"):
        future.result()
    assert not future.cancel()


@both
async def test_a_task_that_is_cancelled_cancels_what_it_awaits(make: Callable[[], Future]) -> None:
    future = make()

    async def wait() -> None:
        await future

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert future.cancelled()


@both
async def test_what_is_not_decided_has_no_result(make: Callable[[], Future]) -> None:
    future = make()
    for ask in (future.result, future.exception):
        with pytest.raises(asyncio.InvalidStateError):
            ask()


@both
async def test_callbacks_come_in_a_later_turn_in_their_context(make: Callable[[], Future]) -> None:
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="none")
    future, said = make(), []

    def say(decided: Future) -> None:
        said.append((decided is future, name.get()))

    name.set("own")
    future.add_done_callback(say)
    given = contextvars.copy_context()
    given.run(name.set, "given")
    future.add_done_callback(say, context=given)
    future.add_done_callback(print)
    assert future.remove_done_callback(print) == 1
    assert future.remove_done_callback(print) == 0
    name.set("later")
    future.set_result(_PUT)
    assert said == []
    await asyncio.sleep(0)
    future.add_done_callback(say)
    await asyncio.sleep(0)
    assert said == [(True, "own"), (True, "given"), (True, "later")]


@both
async def test_as_completed_knows_it_again(make: Callable[[], Future]) -> None:
    futures = [make() for _ in range(3)]
    for future in futures[1:]:
        future.set_result(_PUT)
    asyncio.get_running_loop().call_soon(futures[0].set_result, None)
    got = [await each for each in asyncio.as_completed(futures)]
    assert sorted(map(str, got)) == sorted(map(str, [_PUT, _PUT, None]))


@both
async def test_an_error_that_nobody_asks_for_is_reported(make: Callable[[], Future]) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: reported.append(about))
    asked, unasked = make(), make()
    asked.set_exception(PublishError("asked for"))
    unasked.set_exception(PublishError("not asked for"))
    assert asked.exception() is not None
    del asked, unasked
    gc.collect()
    assert [str(each["exception"]) for each in reported] == ["not asked for"]
    assert "never retrieved" in reported[0]["message"]


async def _caught(own: Future) -> None:
    with contextlib.suppress(PublishError):
        await own


@both
async def test_rings_of_references_are_let_go_of(make: Callable[[], Future]) -> None:
    open_one, failed = make(), make()
    open_one.add_done_callback(lambda _, own=open_one: own.done())
    failed.set_exception(PublishError("the traceback has a frame that has the future that has it"))
    await _caught(failed)
    refs = [weakref.ref(open_one), weakref.ref(failed)]
    del open_one, failed
    gc.collect()
    assert [ref() for ref in refs] == [None, None]


async def test_results_are_set_in_one_call_and_the_others_come_back() -> None:
    records, error = [_pending() for _ in range(4)], PublishError("no")
    records[1].cancel()
    left = settle(records, [_PUT, _PUT, error, _PUT], PutResult)
    assert left == [(records[2], error)]
    assert [each.done() for each in records] == [True, True, False, True]
    assert records[1].cancelled()
    for results in ([_PUT] * 3, [_PUT] * 5):
        with pytest.raises(ValueError, match="results than records"):
            settle([_pending() for _ in range(4)], results, PutResult)


def _intake(wake: Callable[[], None] = lambda: None, stream: StreamRef | None = None) -> Intake:
    return Intake(
        asyncio.get_running_loop(),
        stream or StreamRef.parse("s"),
        wake,
        usual_bytes=100,
        batch=10,
        request_bytes=1_000,
        max_records=3,
        max_bytes=1_000,
        by_key=True,
    )


async def test_an_error_of_who_is_asked_whether_it_is_wanted_loses_no_record() -> None:
    intake = _intake()

    def fail() -> bool:
        raise ZeroDivisionError

    records = [_pending(), _pending(wanted=fail), _pending()]
    for record in records:
        intake.offer(record)
    records[0].cancel()
    with pytest.raises(ZeroDivisionError):
        intake.take_wanted()
    assert intake.waiting() == records[1:]
    assert intake.records == 2


async def test_a_way_takes_in_what_needs_no_question_and_gives_back_the_rest() -> None:
    woken: list[None] = []
    stream = StreamRef.parse("s")
    intake = _intake(lambda: woken.append(None), stream)
    maker = Maker(
        None,
        bytes,
        plain=True,
        spread=SpreadKeys("n"),
        parse=lambda to: stream if to == "s" else StreamRef.parse(to),
        split=lambda headers: (dict(headers), None),
        check_hash_key=check_explicit_hash_key,
    )
    publish = intake.way(maker, 30.0).publish

    def taken(value: bytes = b"x", to: str = "s") -> bool:
        return isinstance(publish(value, to, None, None, None), Pending)

    assert not taken(), "no turn has begun"
    intake.begin_turn(5.0)
    record = publish(b"x", "s", "k", None, None)
    assert isinstance(record, Pending)
    assert (record.deadline, record.key, record.entry) == (35.0, "k", (b"x", "k", None))
    assert woken == [None]
    assert not taken(to="t"), "another stream"
    assert not taken(bytes(101)), "its limit has to be known"
    assert not await asyncio.to_thread(taken), "another thread"
    assert taken()
    assert taken()
    assert not taken(), "it is full"
    intake.forget()
    assert taken()
    intake.end_turn()
    assert not taken(), "the turn is over"


def test_a_way_takes_nothing_in_for_a_loop_that_was_stopped_within_the_turn() -> None:
    stream, loop = StreamRef.parse("s"), asyncio.new_event_loop()
    maker = Maker(
        None,
        bytes,
        plain=True,
        spread=SpreadKeys("n"),
        parse=lambda _: stream,
        split=lambda headers: (dict(headers), None),
        check_hash_key=check_explicit_hash_key,
    )

    async def begin() -> Intake:
        intake = _intake(stream=stream)
        intake.begin_turn(0.0)
        return intake

    publish = loop.run_until_complete(begin()).way(maker, 1.0).publish
    assert isinstance(publish(b"x", "s", None, None, None), tuple)
    loop.close()


@both
async def test_together_with_one_that_is_cancelled(make: Callable[[], Future]) -> None:
    """`gather` asks a cancelled future for more than others do."""
    for later in (False, True):
        futures = [make() for _ in range(3)]
        if not later:
            futures[1].cancel("enough")
        together = asyncio.gather(*futures, return_exceptions=True)
        if later:
            futures[1].cancel("enough")
        futures[0].set_result(_PUT)
        futures[2].set_result(_PUT)
        first, second, third = await asyncio.wait_for(together, 5)
        assert (first, third) == (_PUT, _PUT)
        assert isinstance(second, asyncio.CancelledError)
        assert second.args == ("enough",)


@both
async def test_an_error_of_cancellation_ends_all_that_wait(make: Callable[[], Future]) -> None:
    futures = [make() for _ in range(2)]
    together = asyncio.gather(*futures)
    futures[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(together, 5)
    futures[1].set_result(_PUT)


@both
async def test_all_that_are_gathered_are_cancelled_together(make: Callable[[], Future]) -> None:
    futures = [make() for _ in range(3)]
    together = asyncio.gather(*futures)
    assert together.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(asyncio.wait({together}), 5)
        await together
    assert [future.cancelled() for future in futures] == [True] * 3


@both
async def test_one_that_is_shielded_outlives_its_waiter(make: Callable[[], Future]) -> None:
    future = make()
    shielded = asyncio.shield(future)
    shielded.cancel()
    await asyncio.sleep(0)
    assert not future.done()
    cancelled = make()
    waiting = asyncio.shield(cancelled)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(waiting, 5)
    future.set_result(_PUT)
