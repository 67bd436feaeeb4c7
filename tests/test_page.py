"""A `GetRecords` body becomes a page, or a `PageError`."""

from __future__ import annotations

import gc
import json
import weakref
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruststream_kinesis._core import Page, encode_envelope
from ruststream_kinesis.errors import PageError
from tests import reference
from tests.reference import record, response

KPL_MAGIC = bytes.fromhex("F3899AC2")


def page_of(*records: dict[str, Any], **fields: Any) -> Page:
    return Page.parse(response(records, **fields))


def test_a_record_comes_out_as_it_was_put() -> None:
    page = page_of(
        record(
            b"hello",
            "49" * 28,
            PartitionKey="日本",
            ApproximateArrivalTimestamp=1.7e9,
            EncryptionType="KMS",
        ),
        NextShardIterator="AAA=",
        MillisBehindLatest=60_000,
    )
    assert len(page) == 1
    assert page.payload(0) == page.data(0) == b"hello"
    assert page.sequence_number(0) == "49" * 28
    assert page.partition_key(0) == "日本"
    assert page.arrival(0) == 1.7e9
    assert page.header_block(0) is None
    assert page.headers(0) == {}
    assert page.next_shard_iterator == "AAA="
    assert page.millis_behind_latest == 60_000
    assert page.child_shards == []
    assert page.data_bytes == 5


def test_an_empty_page_keeps_its_lag_and_its_iterator() -> None:
    page = page_of(NextShardIterator="AAA", MillisBehindLatest=5)
    assert (len(page), page.payloads(0, 0), page.data_bytes) == (0, [], 0)
    assert (page.next_shard_iterator, page.millis_behind_latest) == ("AAA", 5)


@pytest.mark.parametrize("fields", [{}, {"NextShardIterator": None}, {"NextShardIterator": ""}])
def test_the_end_of_a_shard_has_many_spellings_and_keeps_its_records(fields: Any) -> None:
    children = [
        {"ShardId": "shardId-1", "ParentShards": ["shardId-0"], "HashKeyRange": {}},
        {"ShardId": "shardId-2"},
    ]
    page = page_of(record(b"last"), ChildShards=children, **fields)
    assert page.next_shard_iterator is None
    assert page.child_shards == ["shardId-1", "shardId-2"]
    assert page.payloads(0, 1) == [b"last"]
    assert page_of(ChildShards=None).child_shards == []


def test_an_envelope_is_taken_off_and_kept_verbatim() -> None:
    odd = b"RSK1\x00\x00\x00\x0bno colon\na:rest"
    page = page_of(
        record(encode_envelope({"trace": "abc"}, b"payload"), "1"),
        record(b"plain", "2"),
        record(encode_envelope(None, b"RSK1 mine"), "3"),
        record(odd, "4"),
        record(b"RSK1\x00\x00\x00\xffshort", "5"),
    )
    assert page.payloads(0, 4) == [b"payload", b"plain", b"RSK1 mine", b"rest"]
    blocks = [page.header_block(i) for i in range(5)]
    assert blocks == [b"trace: abc\n", None, b"", b"no colon\na:", None]
    assert [page.headers(i) for i in range(4)] == [{"trace": "abc"}, {}, {}, {"a": ""}]
    assert page.data(3) == odd
    assert page.payload(4) == page.data(4)


@pytest.mark.parametrize(
    "blob", [KPL_MAGIC + b"hello", KPL_MAGIC, KPL_MAGIC + bytes(15), KPL_MAGIC + bytes(16), b""]
)
def test_case_k1_a_blob_that_only_starts_like_an_aggregate_is_a_payload(blob: bytes) -> None:
    page = page_of(record(b"before", "1"), record(blob, "2"), record(b"after", "3"))
    assert page.payloads(0, 3) == [b"before", blob, b"after"]


@pytest.mark.parametrize(
    "lag", ["null", "-1", "1e400", "1e18", "99999999999999999999", '"5"', "true", "[1]", "{}"]
)
def test_case_r9_an_odd_lag_is_unknown_and_the_records_are_delivered(lag: str) -> None:
    body = response([record(b"hello")])[:-1] + b', "MillisBehindLatest": ' + lag.encode() + b"}"
    page = Page.parse(body)
    assert page.millis_behind_latest is None
    assert page.payloads(0, 1) == [b"hello"]


@pytest.mark.parametrize(("lag", "expected"), [("0", 0), ("6.0E4", 60_000), ("5.0", 5)])
def test_a_lag_may_be_written_with_an_exponent(lag: str, expected: int) -> None:
    body = response([])[:-1] + b', "MillisBehindLatest": ' + lag.encode() + b"}"
    assert Page.parse(body).millis_behind_latest == expected


@pytest.mark.parametrize(
    "at",
    ["null", "-1e12", "253402300800", "1e400", "-1e400", '"2024-01-01T00:00:00Z"', "true", "[]"],
)
def test_case_r9_an_odd_arrival_is_unknown_and_the_record_is_delivered(at: str) -> None:
    body = response([record(b"hello", ApproximateArrivalTimestamp="@")])
    page = Page.parse(body.replace(b'"@"', at.encode()))
    assert page.arrival(0) is None
    assert page.payload(0) == b"hello"


@given(st.floats(allow_nan=False, allow_infinity=False) | st.floats(-6.3e10, 2.6e11))
def test_every_arrival_that_is_given_is_a_date(at: float) -> None:
    arrival = page_of(record(ApproximateArrivalTimestamp=at)).arrival(0)
    if arrival is None:
        assert not -62_135_596_800 <= at <= 253_402_300_799
    else:
        assert arrival == at
        datetime.fromtimestamp(arrival, UTC)


def test_a_record_may_come_without_a_partition_key() -> None:
    page = page_of(
        record(b"a", "1"), record(b"b", "2", PartitionKey=None), record(b"c", "3", PartitionKey="")
    )
    assert [page.partition_key(i) for i in range(3)] == [None, None, ""]


def test_a_lone_surrogate_in_a_key_does_not_stop_the_shard() -> None:
    page = page_of(record(b"a", PartitionKey="x\ud83d"))
    assert str(page.partition_key(0)).startswith("x\ufffd")


def test_json_escapes_are_understood() -> None:
    body = (
        rb'{"Records":[{"Data":"\/\/\/\u002f","SequenceNumber":"\u0034\u0039",'
        rb'"PartitionKey":"\ud83d\ude00\n"}]}'
    )
    page = Page.parse(body)
    assert (page.data(0), page.sequence_number(0)) == (b"\xff\xff\xff", "49")
    assert page.partition_key(0) == "😀\n"


@given(st.lists(st.tuples(st.binary(max_size=40), st.none() | st.text(max_size=8)), max_size=20))
def test_records_do_not_run_into_each_other(given_records: list[tuple[bytes, str | None]]) -> None:
    page = page_of(
        *(record(data, str(i), PartitionKey=key) for i, (data, key) in enumerate(given_records))
    )
    everything = range(len(given_records))
    assert [(page.data(i), page.partition_key(i)) for i in everything] == given_records
    assert [page.sequence_number(i) for i in everything] == [str(i) for i in everything]
    assert page.data_bytes == sum(len(data) for data, _ in given_records)
    assert page.payloads_at(list(everything)[::-1]) == page.payloads(0, len(page))[::-1]


SMALL = response(
    [
        record(b"hello", "49", PartitionKey="é\n", ApproximateArrivalTimestamp=1.7e9),
        record(encode_envelope({"a": "b"}, b"x"), "50"),
    ],
    NextShardIterator="AAA",
    MillisBehindLatest=0,
    ChildShards=[{"ShardId": "s"}],
)


def test_a_body_cut_anywhere_is_a_page_error() -> None:
    assert len(Page.parse(SMALL)) == 2
    for length in range(len(SMALL)):
        with pytest.raises(PageError):
            Page.parse(SMALL[:length])


def test_a_body_with_something_after_it_is_a_page_error() -> None:
    Page.parse(SMALL + b" \r\n")
    for tail in (b"}", b"x", b"\x00", SMALL):
        with pytest.raises(PageError):
            Page.parse(SMALL + tail)


@given(st.integers(0, len(SMALL) - 1), st.integers(0, 255))
def test_a_changed_byte_gives_a_page_or_a_page_error(at: int, byte: int) -> None:
    body = bytearray(SMALL)
    body[at] = byte
    try:
        page = Page.parse(bytes(body))
    except PageError:
        return
    for i in range(len(page)):
        page.payload(i), page.headers(i), page.partition_key(i), page.arrival(i)


@given(st.binary(max_size=200))
def test_garbage_is_a_page_error(body: bytes) -> None:
    with pytest.raises(PageError):
        Page.parse(body)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


@given(
    st.sampled_from(["Records", "NextShardIterator", "MillisBehindLatest", "ChildShards", "New"]),
    json_values,
)
def test_any_value_anywhere_gives_a_page_or_a_page_error(field: str, value: Any) -> None:
    for body in ({"Records": [], field: value}, {"Records": [{field: value}]}, value):
        try:
            Page.parse(json.dumps(body).encode())
        except PageError:
            continue


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"[[]]",
        b"{}",
        b"<html><body>503 Service Unavailable</body></html>",
        b'{"Records": null}',
        b'{"Records": {}}',
        b'{"Records": "x"}',
        b'{"Records": [null]}',
        b'{"Records": [["aGk=", "1"]]}',
        b'{"Records": [], "NextShardIterator": 1}',
        b'{"Records": [], "ChildShards": ["shardId-1"]}',
        b'{"Records": [], "Records": []}',
        b"\xff\xfe",
        b'\xef\xbb\xbf{"Records": []}',
        b"[" * 100_000,
        b'{"Records":' + b"[" * 100_000,
        b'{"Records": [], "New": ' + b"[" * 100_000,
    ],
)
def test_what_is_no_response_is_a_page_error(body: bytes) -> None:
    with pytest.raises(PageError, match="not a GetRecords response"):
        Page.parse(body)


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ({"SequenceNumber": "2"}, "record 1 has no Data"),
        ({"Data": None, "SequenceNumber": "2"}, "record 1 has no Data"),
        ({"Data": ""}, "record 1 has no SequenceNumber"),
        ({"Data": "", "SequenceNumber": None}, "record 1 has no SequenceNumber"),
        ({"Data": "", "SequenceNumber": ""}, "record 1 has no SequenceNumber"),
        ({"Data": "aGk", "SequenceNumber": "2"}, "record 1 has Data that is not base64"),
        ({"Data": "aGk=\n", "SequenceNumber": "2"}, "record 1 has Data that is not base64"),
        ({"Data": "é", "SequenceNumber": "2"}, "record 1 has Data that is not base64"),
        ({"Data": 1, "SequenceNumber": "2"}, "invalid type"),
        ({"Data": [1], "SequenceNumber": "2"}, "invalid type"),
        ({"Data": "", "SequenceNumber": 2}, "invalid type"),
        ({"Data": "", "SequenceNumber": "2", "PartitionKey": 3}, "invalid type"),
    ],
)
def test_a_record_that_cannot_be_used_fails_the_page_and_says_why(
    bad: dict[str, Any], problem: str
) -> None:
    with pytest.raises(PageError, match=problem):
        page_of(record(b"good"), bad)


def test_an_error_document_is_told_by_its_name() -> None:
    with pytest.raises(PageError, match="ExpiredIteratorException"):
        Page.parse(b'{"__type": "ExpiredIteratorException", "message": "old"}')


def test_an_error_never_quotes_a_whole_body() -> None:
    for body in (b"<html>" + b"x" * 100_000, b'{"Records": "' + b"x" * 100_000 + b'"}'):
        with pytest.raises(PageError) as caught:
            Page.parse(body)
        assert len(str(caught.value)) < 400


def test_an_index_outside_the_page_is_an_index_error() -> None:
    page = page_of(record(b"a", "1"), record(b"b", "2"))
    one_record = ("payload", "data", "header_block", "headers", "partition_key", "arrival")
    for name in (*one_record, "sequence_number"):
        for index in (-1, 2, 2**70, -(2**70)):
            with pytest.raises(IndexError):
                getattr(page, name)(index)
    for start, stop in ((0, 3), (2, 1), (-1, 1), (0, -1), (0, 2**70)):
        with pytest.raises(IndexError):
            page.payloads(start, stop)
        with pytest.raises(IndexError):
            page.partitions(start, stop, 1)
    with pytest.raises(IndexError):
        page.payloads_at([0, 2])


def test_one_key_goes_to_one_partition_and_keeps_its_order() -> None:
    keys = [f"customer-{i % 7}" for i in range(100)]
    page = page_of(*(record(b"", str(i), PartitionKey=key) for i, key in enumerate(keys)))
    for n in (1, 2, 5, 64):
        whole = page.partitions(0, 100, n)
        assert len(whole) == n
        assert sorted(i for part in whole for i in part) == list(range(100))
        assert all(part == sorted(part) for part in whole)
        home = {keys[i]: number for number, part in enumerate(whole) for i in part}
        for number, part in enumerate(page.partitions(40, 60, n)):
            assert all(home[keys[i]] == number for i in part)


def test_records_without_a_key_go_round() -> None:
    keys = [None, ""]
    page = page_of(*(record(b"", str(i), PartitionKey=keys[i % 2]) for i in range(30)))
    assert [len(part) for part in page.partitions(0, 30, 3)] == [10, 10, 10]
    # Runs of one record, the quiet stream: they must not all meet in one partition.
    homes = [[bool(part) for part in page.partitions(i, i + 1, 3)].index(True) for i in range(30)]
    assert set(homes) == {0, 1, 2}


def test_a_number_of_partitions_out_of_range_is_a_value_error() -> None:
    page = page_of(record())
    for n in (0, -1, 65_537, 2**70):
        with pytest.raises(ValueError, match="partitions"):
            page.partitions(0, 1, n)


def test_a_page_is_let_go_with_its_last_reference() -> None:
    page = page_of(record(b"hello"))
    gone = weakref.ref(page)
    payloads = page.payloads(0, 1)
    del page
    gc.collect()
    assert gone() is None
    assert payloads == [b"hello"]


def test_finding_a_header_looks_at_a_run_and_reads_as_headers_does() -> None:
    blobs = [
        b"plain",
        reference.encode_envelope({"due": "1", "other": "2"}, b""),
        reference.encode_envelope({"other": "2"}, b""),
        b"RSK1\x00\x00\x00\x15due: 1\n due :  2 \r\nodd\n" + b"",
        reference.encode_envelope({"Due": "3"}, b"due: 4\n"),
        b"RSK1\x00\x00\x00\x05due:\n",
    ]
    page = page_of(*(record(blob, str(n)) for n, blob in enumerate(blobs)))

    found = page.find_header("due", 0, len(blobs))

    assert found == [(1, "1"), (3, "2"), (5, "")]
    assert found == [
        (n, page.headers(n)["due"]) for n in range(len(blobs)) if "due" in page.headers(n)
    ]
    assert page.find_header("due", 2, 4) == [(3, "2")]
    assert page.find_header("due", 2, 2) == []


def test_finding_a_header_outside_the_page_is_an_index_error() -> None:
    page = page_of(record(b"a"))
    for start, stop in ((0, 2), (1, 0), (-1, 1), (0, 2**70)):
        with pytest.raises(IndexError):
            page.find_header("a", start, stop)
