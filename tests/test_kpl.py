"""Aggregates of the Kinesis Producer Library: what a page makes of them, and writing one."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruststream_kinesis._core import (
    Aggregator,
    Page,
    Watermark,
    decode_aggregate,
    encode_envelope,
    hash_key,
)
from tests import reference
from tests.reference import SubRecord, aggregate, record, response, sealed

MAGIC = bytes.fromhex("F3899AC2")
KEYS = st.text(min_size=1, max_size=6)
HASH_KEYS = st.none() | st.integers(0, 2**128 - 1).map(str)
RECORDS = st.lists(st.tuples(KEYS, HASH_KEYS, st.binary(max_size=300)), max_size=20)


def page_of(*blobs: bytes, first: int = 1, **fields: Any) -> Page:
    """A page of blobs with the numbers 1, 2, 3, … and the key of the whole."""
    listed = [record(blob, str(n), PartitionKey="whole") for n, blob in enumerate(blobs, first)]
    return Page.parse(response(listed, **fields))


def written(records: list[SubRecord]) -> bytes:
    """The same through the core."""
    collected = Aggregator(2**40)
    for key, explicit, data in records:
        assert collected.add(key, data, explicit)
    return collected.take()


class TestReading:
    def test_the_records_of_an_aggregate_are_records_of_the_page(self):
        blob = aggregate([("a", None, b"1"), ("b", "7", b"2"), ("a", "7", b"3")])
        page = page_of(b"before", blob, b"after", NextShardIterator="i")

        every = range(len(page))
        assert page.payloads(0, len(page)) == [b"before", b"1", b"2", b"3", b"after"]
        assert [page.sequence_number(i) for i in every] == ["1", "2", "2", "2", "3"]
        assert [page.sub_sequence_number(i) for i in every] == [None, 0, 1, 2, None]
        assert [page.partition_key(i) for i in every] == ["whole", "a", "b", "a", "whole"]
        assert [page.explicit_hash_key(i) for i in every] == [None, None, "7", "7", None]
        assert [page.data(i) for i in every] == page.payloads(0, len(page))
        assert page.data_bytes == len(b"before") + len(blob) + len(b"after")
        assert page.last_sequence_number == "3"

    def test_each_record_of_an_aggregate_has_an_envelope_of_its_own(self):
        blobs = [
            encode_envelope({"trace": "x"}, b"with"),
            b"without",
            encode_envelope(None, b"RSK1 mine"),
        ]
        page = page_of(aggregate([("k", None, blob) for blob in blobs]))

        assert page.payloads(0, 3) == [b"with", b"without", b"RSK1 mine"]
        assert [page.headers(i) for i in range(3)] == [{"trace": "x"}, {}, {}]
        assert [page.data(i) for i in range(3)] == blobs
        assert page.find_header("trace", 0, 3) == [(0, "x")]

    def test_records_of_an_aggregate_are_spread_over_workers_by_their_own_keys(self):
        keys = [f"key-{n}" for n in range(40)]
        page = page_of(aggregate([(key, None, b"") for key in keys * 2]))
        alone = Page.parse(
            response([record(b"", str(n), PartitionKey=key) for n, key in enumerate(keys)])
        )

        together = [{page.partition_key(i) for i in lane} for lane in page.partitions(0, 80, 5)]
        assert together == [
            {alone.partition_key(i) for i in lane} for lane in alone.partitions(0, 40, 5)
        ]

    def test_an_aggregate_without_records_is_no_record_of_the_page(self):
        page = page_of(aggregate(), b"x", aggregate(), MillisBehindLatest=5)

        assert (len(page), page.payload(0), page.sequence_number(0)) == (1, b"x", "2")
        assert (page.last_sequence_number, page.empty_aggregates) == ("3", 2)
        assert page_of(b"x").empty_aggregates == 0
        assert page_of().last_sequence_number is None

    @pytest.mark.parametrize(
        "blob", [MAGIC + b"hello", MAGIC, MAGIC + bytes(15), MAGIC + bytes(16), b"x" + aggregate()]
    )
    def test_case_k1_a_blob_that_only_starts_like_an_aggregate_is_a_payload(self, blob: bytes):
        page = page_of(b"before", blob, b"after")

        assert page.payloads(0, 3) == [b"before", blob, b"after"]
        assert page.sub_sequence_number(1) is None
        assert decode_aggregate(blob) is None

    @pytest.mark.parametrize(
        "message",
        [
            b"\x0a\xff",
            b"\x0a\x01k\x1a\x04\x08\x01\x1a\x00",
            b"\x0a\x01k\x1a\x04\x08\x00\x1a\x00\x1a\x02\x08\x00",
            b"\x1a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
            b"\x0b" * 1000,
        ],
        ids=["cut off", "key beyond the table", "second has no data", "huge length", "groups"],
    )
    def test_case_k1_a_right_sum_over_a_broken_message_is_one_whole_payload(self, message: bytes):
        blob = sealed(message)
        page = page_of(b"before", blob, b"after")

        assert page.payloads(0, 3) == [b"before", blob, b"after"]
        assert page.partition_key(1) == "whole"
        assert decode_aggregate(blob) is None

    def test_an_index_beyond_the_page_is_an_error_here_too(self):
        page = page_of(aggregate([("k", None, b"")]))
        for index in (-1, 1, 2**70):
            with pytest.raises(IndexError):
                page.sub_sequence_number(index)
            with pytest.raises(IndexError):
                page.explicit_hash_key(index)

    @pytest.mark.parametrize("bad", ["", "-1", "007", "1e3", str(2**128), "x"])
    def test_a_hash_key_that_the_service_would_not_take_is_none(self, bad: str):
        page = page_of(aggregate([("k", bad, b"payload")]))
        assert (page.explicit_hash_key(0), page.payload(0)) == (None, b"payload")

    @given(st.lists(RECORDS | st.binary(max_size=30), max_size=6))
    def test_a_page_is_its_blobs_taken_apart(self, blobs: list[Any]):
        page = page_of(*(b if isinstance(b, bytes) else aggregate(b) for b in blobs))
        expected: list[Any] = []
        for blob in blobs:
            if isinstance(blob, bytes):
                expected.append(("whole", None, blob, None))
            else:
                expected += [(*each, at) for at, each in enumerate(blob)]

        assert [
            (
                page.partition_key(i),
                page.explicit_hash_key(i),
                page.data(i),
                page.sub_sequence_number(i),
            )
            for i in range(len(page))
        ] == expected

    @given(RECORDS, st.integers(0), st.integers(0, 255))
    def test_a_damaged_aggregate_is_an_aggregate_or_a_payload(
        self, records: list[SubRecord], at: int, byte: int
    ):
        message = bytearray(aggregate(records)[4:-16] or b" ")
        message[at % len(message)] = byte
        blob = sealed(bytes(message))
        page = page_of(b"before", blob, b"after")

        inside = decode_aggregate(blob)
        expected = [blob] if inside is None else [data for _, _, data in inside]
        assert [page.data(i) for i in range(len(page))] == [b"before", *expected, b"after"]


class TestThePosition:
    """Of the watermark, over pages with aggregates in them, by its definition."""

    @given(st.lists(st.lists(st.none() | st.integers(0, 4), max_size=5), max_size=5), st.randoms())
    def test_it_is_the_last_record_up_to_which_all_is_settled(
        self, pages: list[list[int | None]], rng: random.Random
    ):
        # A number is the size of an aggregate; `None` a record that comes alone.
        watermark, number = Watermark(), 0
        open_of: dict[str, set[int]] = {}
        waiting: list[int] = []
        for page in pages:
            blobs = [
                b"x" if size is None else aggregate([("k", None, b"")] * size) for size in page
            ]
            place = watermark.deliver(page_of(*blobs, first=number + 1))
            for size in page:
                number += 1
                places = set(range(place, place + (1 if size is None else size)))
                place += len(places)
                open_of[str(number)] = places
                waiting += places
            while waiting and rng.random() < 0.7:
                waiting.remove(settled := rng.choice(waiting))
                if rng.random() < 0.2:
                    watermark.hold(settled)
                before = watermark.position
                moved = watermark.settle(settled)
                for places in open_of.values():
                    places.discard(settled)
                assert moved == (watermark.position != before)
            passed = None
            for each, places in open_of.items():
                if places:
                    break
                passed = each
            assert watermark.position == passed

    def test_one_open_record_of_an_aggregate_holds_the_whole_back(self):
        watermark = Watermark()
        watermark.deliver(page_of(b"x", aggregate([("k", None, b"")] * 200), b"y"))

        watermark.settle_range(0, 201)
        assert watermark.position == "2"
        watermark.reset()
        watermark.deliver(page_of(b"x", aggregate([("k", None, b"")] * 200), b"y"))
        watermark.settle_range(202, 202 + 200)
        watermark.settle(202 + 201)
        assert watermark.position == "1"
        assert watermark.settle(202 + 200)
        assert watermark.position == "3"


class TestWriting:
    @given(RECORDS)
    def test_what_is_written_is_what_anybody_reads(self, records: list[SubRecord]):
        blob = written(records)
        assert blob == aggregate(records)
        assert decode_aggregate(blob) == records

    @given(RECORDS)
    def test_the_size_is_known_before(self, records: list[SubRecord]):
        collected = Aggregator(2**40)
        assert (len(collected), collected.size, collected.partition_key) == (0, 20, None)
        for key, explicit, data in records:
            told = collected.size_with(key, len(data), explicit)
            assert collected.add(key, data, explicit)
            assert collected.size == told
        size, first = collected.size, collected.partition_key or ""
        assert len(collected) == len(records)
        assert len(collected.take()) + len(first.encode()) == size
        assert (len(collected), collected.size) == (0, 20)

    @given(RECORDS, st.integers(0, 2000))
    def test_it_never_grows_beyond_its_limit(self, records: list[SubRecord], limit: int):
        collected, kept = Aggregator(limit), []
        for each in records:
            key, explicit, data = each
            fits = collected.size_with(key, len(data), explicit) <= limit
            assert collected.add(key, data, explicit) == fits
            if fits:
                kept.append(each)
        key = collected.partition_key or ""
        blob = collected.take()
        assert decode_aggregate(blob) == kept
        assert not kept or len(blob) + len(key.encode()) <= limit

    def test_case_p4_a_record_is_filled_to_its_last_byte(self):
        room = 1024 * 1024 - Aggregator(0).size_with("日本", 2**20)
        collected = Aggregator(1024 * 1024)
        assert collected.size_with("日本", 2**20 + room + 1) == 1024 * 1024 + 1
        assert not collected.add("日本", bytes(2**20 + room + 1))
        assert collected.add("日本", bytes(2**20 + room))
        assert len(collected.take()) + 6 == 1024 * 1024

    def test_anything_with_a_buffer_is_data(self):
        collected = Aggregator(1000)
        for data in (b"1", bytearray(b"2"), memoryview(b"33")[::2]):
            assert collected.add("k", data)
        assert decode_aggregate(bytearray(collected.take())) == [
            ("k", None, b"1"),
            ("k", None, b"2"),
            ("k", None, b"3"),
        ]

    @pytest.mark.parametrize("bad", ["", "-1", "01", str(2**128), "\ud800"])
    def test_a_hash_key_that_the_service_would_not_take_is_refused(self, bad: str):
        collected = Aggregator(1000)
        with pytest.raises(ValueError, match=r"hash key|surrogate"):
            collected.add("k", b"", bad)
        with pytest.raises(ValueError, match=r"hash key|surrogate"):
            collected.size_with("k", 0, bad)
        assert len(collected) == 0

    def test_what_cannot_be_is_a_value_error(self):
        with pytest.raises(ValueError, match="surrogate"):
            Aggregator(1000).add("\ud83d", b"")
        with pytest.raises(ValueError, match="0 bytes or more"):
            Aggregator(-1)
        for size in (-1, 2**32, 2**70):
            with pytest.raises(ValueError, match="4,294,967,295"):
                Aggregator(1000).size_with("k", size)
        assert not Aggregator(0).add("k", b"")
        assert Aggregator(2**70).add("k", b"")


class TestOtherLibraries:
    # Made by `aws-kinesis-agg` 1.2.3.
    GOLDEN = (
        b"\xf3\x89\x9a\xc2\n\x02k1\x12\x015\x1a\x07\x08\x00\x1a\x03abc\x1a\t\x08\x00\x10\x00\x1a"
        b'\x03def"V\xd7hE\xbc\x95Ao\xe8\xc5\x12@\xe1\x14\x81'
    )

    def test_their_bytes_are_ours(self):
        records: list[SubRecord] = [("k1", None, b"abc"), ("k1", "5", b"def")]
        assert decode_aggregate(self.GOLDEN) == records
        assert written(records) == self.GOLDEN

    @given(RECORDS.filter(bool))
    def test_they_write_what_we_write(self, records: list[SubRecord]):
        peer = pytest.importorskip("aws_kinesis_agg.aggregator", reason="aws-kinesis-agg")
        collected = peer.RecordAggregator()
        for key, explicit, data in records:
            collected.add_user_record(key, data, explicit)
        assert collected.clear_and_get().get_contents()[2] == written(records)


class TestHashKey:
    def test_case_k2_it_is_unsigned_with_the_highest_byte_first_over_utf8(self):
        assert hash_key("user-1") == 285573413173782752570879317399258818820
        assert hash_key("日本") == int(hashlib.md5("日本".encode()).hexdigest(), 16)

    @given(st.text())
    def test_it_is_a_number_of_128_bits(self, key: str):
        digest = hashlib.md5(key.encode()).digest()
        assert hash_key(key) == int.from_bytes(digest, "big")

    def test_a_lone_surrogate_has_none(self):
        with pytest.raises(ValueError, match="lone surrogate"):
            hash_key("\ud83d")


def test_the_reference_reads_like_the_core():
    assert reference.aggregate([("k1", None, b"abc"), ("k1", "5", b"def")]) == (
        TestOtherLibraries.GOLDEN
    )
