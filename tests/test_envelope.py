"""The header envelope: exact when written, lenient when read."""

from __future__ import annotations

from collections import OrderedDict
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ruststream_kinesis._core import decode_envelope, encode_envelope, rewrite_envelope
from ruststream_kinesis.errors import EnvelopeError
from tests import reference

# The limit of the service for key and data together, unless the stream says more.
RECORD_BYTES = 1_048_576

any_text = st.text(st.characters(exclude_categories=()), max_size=12)
good_headers = st.dictionaries(any_text, any_text, max_size=4).map(
    lambda headers: {n: v for n, v in headers.items() if reference.fits_envelope(n, v)}
)


def test_headers_stand_in_front_of_the_payload() -> None:
    blob = encode_envelope({"a": "1", "trace": "日本"}, b"payload")
    assert blob == b"RSK1\x00\x00\x00\x13a: 1\ntrace: \xe6\x97\xa5\xe6\x9c\xac\npayload"


@pytest.mark.parametrize("headers", [None, {}, MappingProxyType({})])
def test_without_headers_the_payload_is_the_record(headers: Any) -> None:
    payload = b'{"id": 1}'
    assert encode_envelope(headers, payload) is payload


def test_a_payload_that_looks_like_an_envelope_reads_back_unchanged() -> None:
    payload = b"RSK1\x00\x00\x00\x00hello"
    blob = encode_envelope(None, payload)
    assert blob == b"RSK1\x00\x00\x00\x00" + payload
    assert decode_envelope(blob) == ({}, payload)
    assert encode_envelope({}, bytearray(b"RSK1")) == b"RSK1\x00\x00\x00\x00RSK1"


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_a_payload(kind: Any) -> None:
    assert encode_envelope(None, kind(b"abc")) == b"abc"
    assert encode_envelope({"a": "b"}, kind(b"abc")).endswith(b"\nabc")
    assert encode_envelope({"a": "b"}, kind(b"")).endswith(b"a: b\n")
    assert decode_envelope(kind(encode_envelope({"a": "b"}, b"abc"))) == ({"a": "b"}, b"abc")


def test_a_slice_with_a_step_is_a_payload() -> None:
    assert encode_envelope({"a": "b"}, memoryview(b"a-b-c")[::2]).endswith(b"\nabc")


def test_a_subclass_of_bytes_becomes_plain_bytes() -> None:
    class Tagged(bytes):
        pass

    blob = encode_envelope(None, Tagged(b"abc"))
    assert (type(blob), blob) == (bytes, b"abc")


def test_the_order_of_a_mapping_is_kept() -> None:
    headers = OrderedDict(b="1", a="2")
    assert encode_envelope(MappingProxyType(headers), b"")[8:] == b"b: 1\na: 2\n"


def test_case_p4_the_envelope_counts_towards_the_limit() -> None:
    key = "日本"
    room = RECORD_BYTES - len(key.encode())
    assert room == 1_048_570
    assert len(encode_envelope(None, bytes(room))) + len(key.encode()) == RECORD_BYTES

    headers = {"trace": "é", "kind": "order"}
    front = 8 + sum(len(f"{name}: {value}\n".encode()) for name, value in headers.items())
    assert len(encode_envelope(headers, bytes(room - front))) == room
    assert len(encode_envelope(headers, bytes(room - front + 1))) == room + 1


@pytest.mark.parametrize("value", ["é" * 256, "😀", "a\x00b", "日本", "", "x: y", "\x1c"])
def test_case_p6_any_text_survives(value: str) -> None:
    blob = encode_envelope({"name": value}, b"payload")
    assert decode_envelope(blob) == ({"name": value}, b"payload")


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("", "v", "may not be empty"),
        ("a:b", "v", "may not hold ':'"),
        ("a\nb", "v", "name may not hold CR or LF"),
        ("a\r", "v", "name may not hold CR or LF"),
        (" a", "v", "name may not start or end with white space"),
        ("a\u3000", "v", "name may not start or end with white space"),
        ("a", "v\nw", "value may not hold CR or LF"),
        ("a", "v\r", "value may not hold CR or LF"),
        ("a", "\tv", "value may not start or end with white space"),
        ("a", " ", "value may not start or end with white space"),
        ("\ud83d", "v", "name may not hold a lone surrogate"),
        ("a", "\ud83d", "value may not hold a lone surrogate"),
        (1, "v", "name must be a str"),
        (b"a", "v", "name must be a str"),
        ("a", 1, "value must be a str"),
        ("a", None, "value must be a str"),
    ],
)
def test_a_header_that_would_change_is_refused_by_name(name: Any, value: Any, problem: str) -> None:
    with pytest.raises(EnvelopeError, match="header .*" + problem):
        encode_envelope({"good": "header", name: value}, b"payload")


def test_the_refused_header_is_the_one_that_is_named() -> None:
    with pytest.raises(EnvelopeError, match='header "x-trace"'):
        encode_envelope({"good": "header", "x-trace": "a\nb"}, b"")


def test_a_refusal_quotes_a_long_name_in_part_only() -> None:
    with pytest.raises(EnvelopeError) as caught:
        encode_envelope({"n" * 100_000: "a\n"}, b"")
    assert len(str(caught.value)) < 300


def test_headers_that_are_no_mapping_are_refused() -> None:
    for headers in (["a"], "a", 1):
        with pytest.raises(EnvelopeError, match="mapping"):
            encode_envelope(headers, b"")  # type: ignore[arg-type]  # the point of the test


def test_a_payload_that_is_no_buffer_is_a_type_error() -> None:
    for headers in (None, {"a": "b"}):
        with pytest.raises(TypeError):
            encode_envelope(headers, "text")  # type: ignore[arg-type]  # the point of the test


@given(good_headers, st.binary(max_size=64))
@example({}, b"RSK1")
@example({"a": ""}, b"")
def test_what_is_written_reads_back(headers: dict[str, str], payload: bytes) -> None:
    blob = encode_envelope(headers, payload)
    assert blob == reference.encode_envelope(headers, payload)
    assert decode_envelope(blob) == (headers, payload)


@given(any_text, any_text)
def test_exactly_what_would_change_is_refused(name: str, value: str) -> None:
    if reference.fits_envelope(name, value):
        assert decode_envelope(encode_envelope({name: value}, b"")) == ({name: value}, b"")
    else:
        with pytest.raises(EnvelopeError):
            encode_envelope({name: value}, b"")


@given(
    st.one_of(
        st.binary(max_size=64),
        st.binary(max_size=16).map(lambda tail: b"RSK1" + tail),
        st.binary(max_size=64).map(lambda block: b"RSK1\x00\x00\x00\x10" + block),
        st.lists(st.sampled_from(["a", ":", " ", "\n", "\r", "\x1c", "é", "\u2028"])).map(
            lambda parts: reference.encode_envelope({"": "".join(parts)}, b"rest")
        ),
    )
)
def test_any_blob_is_read_as_the_reference_reads_it(blob: bytes) -> None:
    assert decode_envelope(blob) == reference.decode_envelope(blob)


def test_reading_is_lenient_line_by_line() -> None:
    block = b"no colon\n x :  1 \r\nbad: \xff\nx: 2\nurl: http://h:1"
    blob = b"RSK1" + len(block).to_bytes(4, "big") + block + b"payload"
    headers, payload = decode_envelope(blob)
    assert headers == {"x": "2", "bad": "\ufffd", "url": "http://h:1"}
    assert payload == b"payload"


def test_a_length_beyond_the_blob_means_a_plain_payload() -> None:
    for blob in (b"RSK1", b"RSK1\x00\x00", b"RSK1\x00\x00\x00\x01", b"RSK1\xff\xff\xff\xffa: b\n"):
        assert decode_envelope(blob) == ({}, blob)


def block_of(blob: bytes) -> bytes:
    return blob[8 : 8 + int.from_bytes(blob[4:8], "big")]


@given(
    st.binary(max_size=80),
    st.dictionaries(
        st.sampled_from(["a", "x-count", "é"]), st.none() | st.sampled_from(["", "1", "日本"])
    ),
    st.binary(max_size=16),
)
@example(b"a: 1\n a : 2\nA: 3\n\xff: 4", {"a": "9"}, b"RSK1")
@example(b"x-count: 1", {"a": "1"}, b"")
@example(b"", {}, b"RSK1")
def test_rewriting_keeps_every_other_line_byte_for_byte(
    block: bytes, changes: dict[str, str | None], payload: bytes
) -> None:
    blob = rewrite_envelope(block, changes, payload)

    def ours(line: bytes) -> bool:
        name, colon, _ = line.decode(errors="replace").partition(":")
        return bool(colon) and name.strip(reference.WHITE_SPACE) in changes

    kept = b"".join(line for line in lines(block) if not ours(line))
    written = {name: value for name, value in changes.items() if value is not None}
    if written and kept and not kept.endswith(b"\n"):
        kept += b"\n"
    added = "".join(f"{name}: {value}\n" for name, value in written.items()).encode()
    assert block_of(blob) == kept + added
    headers, read = decode_envelope(blob)
    assert read == payload
    assert {name: headers.get(name) for name in changes} == changes


def lines(block: bytes) -> list[bytes]:
    """The lines of a block, each with its end; only LF ends one."""
    parts = block.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def test_rewriting_again_and_again_does_not_grow() -> None:
    blob = rewrite_envelope(None, {"x-count": "1"}, b"payload")
    for _ in range(5):
        again = rewrite_envelope(block_of(blob), {"x-count": "1"}, b"payload")
        assert again == blob


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("", "1"),
        ("a:b", "1"),
        ("a\n", "1"),
        (" a", "1"),
        ("a", "1\n"),
        ("a", " 1"),
        ("a", "\ud800"),
    ],
)
def test_rewriting_refuses_what_would_not_read_back(name: str, value: str) -> None:
    with pytest.raises(EnvelopeError):
        rewrite_envelope(b"kept: 1\n", {name: value}, b"")


def test_a_header_that_is_taken_out_may_have_any_name() -> None:
    assert (
        block_of(rewrite_envelope(b"a: 1\n", {"": None, "b:": None, " c": None}, b"")) == b"a: 1\n"
    )
