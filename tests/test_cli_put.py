"""`put`: what becomes of each line, however many there are and whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import io
import itertools
from collections.abc import AsyncIterator, Iterable

import pytest

from ruststream_kinesis._core import encode_envelope
from ruststream_kinesis.cli import inputs, putting
from ruststream_kinesis.cli.inputs import CHUNK, lines, reading, whole
from ruststream_kinesis.cli.putting import Putter, Recipe, Told, put_lines
from ruststream_kinesis.clock import SystemClock
from ruststream_kinesis.errors import AccessDenied, ConfigurationError, KinesisError
from ruststream_kinesis.threads import HandlerThreads
from ruststream_kinesis.transport import PutEntry
from tests.support.putting import Sink
from tests.support.world import PATIENCE, until


def pieces(*given: bytes) -> inputs.Input:
    left = [*given]

    async def read() -> bytes:
        await asyncio.sleep(0)
        return left.pop(0) if left else b""

    return read


async def chunks(*given: list[tuple[int, bytes]]) -> AsyncIterator[list[tuple[int, bytes]]]:
    for each in given:
        yield each


def denied(_entry: PutEntry) -> KinesisError:
    return AccessDenied("not yours", code="AccessDeniedException", status=400)


class Try:
    """One `put` into a sink."""

    def __init__(self, **recipe: object) -> None:
        self.sink = Sink(clock=SystemClock())
        self.told = Told("orders")
        self.stop, self.hurry = asyncio.Event(), asyncio.Event()
        self.decided = 0
        publisher = self.sink.publisher(linger=0.001)
        self.putter = Putter(publisher, Recipe("orders", **recipe))  # type: ignore[arg-type]  # the test's own

    async def lines(self, given: Iterable[bytes]) -> Told:
        numbered = list(enumerate(given, 1))
        return await self.chunks(chunks(numbered))

    async def chunks(self, given: AsyncIterator[list[tuple[int, bytes]]]) -> Told:
        def advance(more: int) -> None:
            self.decided += more

        async with asyncio.timeout(PATIENCE):
            await put_lines(
                self.putter, self.told, given, stop=self.stop, hurry=self.hurry, advance=advance
            )
        return self.told


class TestInput:
    async def test_lines_are_numbered_and_empty_ones_are_none(self):
        found = [each async for each in lines(pieces(b"a\r\nb", b"b\n\n", b"\nc"))]

        assert [*itertools.chain(*found)] == [(1, b"a"), (2, b"bb"), (5, b"c")]

    async def test_a_line_longer_than_any_record_is_refused_with_its_number(self, monkeypatch):
        monkeypatch.setattr(inputs, "_LONGEST", 4)

        with pytest.raises(ConfigurationError, match="line 2 "):
            _ = [each async for each in lines(pieces(b"a\n", b"12345"))]

    async def test_a_value_longer_than_any_record_is_refused(self, monkeypatch):
        monkeypatch.setattr(inputs, "_LONGEST", 4)

        assert await whole(pieces(b"12", b"34")) == b"1234"
        with pytest.raises(ConfigurationError, match="--lines"):
            await whole(pieces(b"12345"))

    async def test_a_file_is_read_in_a_thread_to_its_end(self):
        threads = HandlerThreads(1, "input")
        read = reading(io.BytesIO(b"x" * CHUNK + b"y"), threads)

        assert [len(await read()), await read(), await read()] == [CHUNK, b"y", b""]
        threads.close()


class TestRecipe:
    @pytest.mark.parametrize(
        ("value", "key"), [(b'{"id": 7}', "7"), (b'{"id": "ada", "x": []}', "ada")]
    )
    def test_a_field_of_the_json_is_the_key(self, value, key):
        assert Recipe("orders", key_field="id").key_of(value) == key

    @pytest.mark.parametrize(
        "value",
        [b"{", b"[1]", b'{"x": 1}', b'{"id": ""}', b'{"id": true}', b'{"id": 1.5}', b"\xff"],
    )
    def test_a_value_without_such_a_field_is_refused(self, value):
        with pytest.raises(ConfigurationError):
            Recipe("orders", key_field="id").key_of(value)

    def test_what_contradicts_itself_is_refused(self):
        with pytest.raises(ConfigurationError, match="--header"):
            Recipe("orders", raw=True, headers={"a": "b"})
        with pytest.raises(ConfigurationError, match="--key-field"):
            Recipe("orders", key="a", key_field="b")

    async def test_a_raw_value_is_put_as_it_is_and_any_other_reads_back_as_it_was_given(self):
        blob = encode_envelope({"trace": "1"}, b"x")
        raw, plain = Try(raw=True, key="k"), Try(key="k")

        await raw.lines([blob, b"y"])
        await plain.lines([blob])

        assert sorted(raw.sink.taken()) == [blob, b"y"]
        assert plain.sink.taken() == [encode_envelope(None, blob)]

    async def test_headers_travel_in_the_envelope(self):
        it = Try(headers={"trace": "1"})

        await it.lines([b"x"])

        assert it.sink.taken() == [encode_envelope({"trace": "1"}, b"x")]


class TestLines:
    async def test_every_line_is_a_record_and_a_key_keeps_its_order(self):
        it = Try(key_field="k")
        given = [b'{"k": "%d", "n": %d}' % (n % 7, n) for n in range(1000)]

        told = await it.lines(given)

        assert (told.sent, told.failed, told.read, told.good) == (1000, 0, 1000, True)
        assert it.decided == 1000
        assert sorted(it.sink.taken()) == sorted(given)
        for key in "0123456":
            mine = [data for name, data in it.sink.records["orders"] if name == key]
            assert mine == [data for data in given if b'"k": "%s"' % key.encode() in data]

    async def test_lines_that_fail_are_named_and_the_others_are_sent(self):
        it = Try(key_field="k")
        it.sink.refuse = lambda entry: denied(entry) if entry[1] == "bad" else None

        told = await it.lines([b'{"k": "a"}', b"{", b'{"k": "bad"}', b'{"k": "b"}'])

        assert (told.sent, told.failed, told.good) == (2, 2, False)
        assert sorted(each.line for each in told.failures) == [2, 3]
        assert any("not yours" in each.error for each in told.failures)

    async def test_where_nothing_is_taken_the_rest_is_not_read(self):
        it = Try()
        it.sink.refuse = denied

        async def endless() -> AsyncIterator[list[tuple[int, bytes]]]:
            for n in itertools.count(1):
                yield [(n, b"x")]

        told = await it.chunks(endless())

        assert told.stopped == "100 lines in a row failed"
        assert told.failed >= 100

    async def test_a_stop_reads_no_more_and_waits_for_what_is_on_its_way(self):
        it = Try()
        it.sink.open.clear()

        async def until_stopped() -> AsyncIterator[list[tuple[int, bytes]]]:
            yield [(1, b"x"), (2, b"y")]
            it.stop.set()
            it.sink.open.set()
            await asyncio.Event().wait()

        told = await it.chunks(until_stopped())

        assert (told.sent, told.unknown, told.read) == (2, 0, 2)
        assert told.stopped == "interrupted"

    async def test_a_second_one_waits_for_nothing_and_says_that_it_does_not_know(self):
        it = Try()
        it.sink.open.clear()

        async def until_hurried() -> AsyncIterator[list[tuple[int, bytes]]]:
            yield [(1, b"x"), (2, b"y")]
            it.stop.set()
            it.hurry.set()
            await asyncio.Event().wait()

        told = await it.chunks(until_hurried())

        assert (told.sent, told.failed, told.unknown) == (0, 0, 2)
        assert not told.good
        it.sink.open.set()

    async def test_a_line_too_long_ends_it_after_what_was_read(self, monkeypatch):
        monkeypatch.setattr(inputs, "_LONGEST", 4)
        it = Try()

        with pytest.raises(ConfigurationError, match="line 2"):
            await it.chunks(lines(pieces(b"a\n", b"12345")))

        assert it.told.read == 1

    async def test_no_more_is_read_than_may_be_on_its_way(self, monkeypatch):
        monkeypatch.setattr(putting, "_ON_THEIR_WAY", 1_000)
        it = Try()
        it.sink.open.clear()
        read = 0

        async def many() -> AsyncIterator[list[tuple[int, bytes]]]:
            nonlocal read
            for start in range(0, 5_000, 100):
                read = start + 100
                yield [(start + n, b"x") for n in range(1, 101)]

        going = asyncio.ensure_future(it.chunks(many()))
        await until(lambda: read > 1_000)
        for _ in range(100):
            await asyncio.sleep(0)
        assert read == 1_100
        it.sink.open.set()

        assert (await going).sent == 5_000
