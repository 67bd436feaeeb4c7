"""What the native core does, as checked callables over one page.

Two users: `bench_core.py` shows them through pytest-benchmark, `python -m benches core` compares
them in one interleaved run. Each builder checks its result once and returns only the work to time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from benches.cpu import Sample
from benches.pages import Order, Spec, page_body, page_payloads
from benches.tally import WrongResultError
from ruststream_kinesis._core import Page, Watermark, decode_envelope, encode_envelope

if TYPE_CHECKING:
    from collections.abc import Callable

# Headers of an ordinary traced event: what an envelope holds when there is one.
HEADERS = {
    "content-type": "application/json",
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
}

# A sample shorter than this is mostly the clock's own cost and the scheduler's mood.
SAMPLE_SECONDS = 0.05


@dataclass(frozen=True)
class Work:
    """One thing to time."""

    name: str
    run: Callable[[], object]
    units: int
    """Records it handles in one call."""


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise WrongResultError(what)


def payload_decode(spec: Spec) -> Work:
    """The yardstick: msgspec decodes every payload of the page."""
    payloads = page_payloads(spec)
    decode = msgspec.json.Decoder(Order).decode
    ids = [decode(payload).id for payload in payloads]
    _require(ids == spec.ids(0, 1), "msgspec decoded other ids")

    def run() -> None:
        for payload in payloads:
            decode(payload)

    return Work(f"msgspec decode, {spec.record_bytes} B", run, spec.records)


def envelope_decode(spec: Spec, *, headers: bool) -> Work:
    """`decode_envelope` of every record, with or without headers."""
    payloads = page_payloads(spec)
    sent = HEADERS if headers else {}
    blobs = [encode_envelope(sent, payload) for payload in payloads]
    for blob, payload in zip(blobs, payloads, strict=True):
        got_headers, got = decode_envelope(blob)
        _require(bytes(got) == payload and dict(got_headers or {}) == sent, "envelope differs")

    def run() -> None:
        for blob in blobs:
            decode_envelope(blob)

    return Work(f"envelope decode, {'two' if headers else 'no'} headers", run, spec.records)


def envelope_encode(spec: Spec) -> Work:
    """`encode_envelope` of every record, with two headers. `envelope_decode` checks it."""
    payloads = page_payloads(spec)

    def run() -> None:
        for payload in payloads:
            encode_envelope(HEADERS, payload)

    return Work("envelope encode, two headers", run, spec.records)


def _watermark_pass(page: Page, watermark: Watermark) -> None:
    first = watermark.deliver(page)
    settle = watermark.settle
    for place in range(first, first + len(page)):
        settle(place)


def watermark_calls(spec: Spec) -> Work:
    """Both watermark calls: the page takes its places, every record is settled in order."""
    page = Page.parse(page_body(spec))
    watermark = Watermark()
    _watermark_pass(page, watermark)
    _require(
        watermark.position == spec.sequence_number(0, 0, spec.records - 1),
        "the watermark is not at the last record",
    )
    return Work("deliver + settle", lambda: _watermark_pass(page, watermark), spec.records)


def envelope_and_watermark(spec: Spec, *, headers: bool) -> Work:
    """What may cost no more than the payload decode: envelope decode and both watermark calls."""
    envelope, calls = envelope_decode(spec, headers=headers), watermark_calls(spec)

    def run() -> None:
        envelope.run()
        calls.run()

    name = f"envelope ({'two' if headers else 'no'} headers) + deliver + settle"
    return Work(name, run, spec.records)


def page_parse(spec: Spec) -> Work:
    """`Page.parse` of the response body: JSON, base64, arrival time, envelope."""
    body = page_body(spec)
    _require(len(Page.parse(body)) == spec.records, "records are missing from the page")
    return Work(
        f"Page.parse, {spec.records} x {spec.record_bytes} B",
        lambda: Page.parse(body),
        spec.records,
    )


def page_payload_list(spec: Spec) -> Work:
    """`payloads()` of a whole page: one bytes object a record."""
    page = Page.parse(page_body(spec))
    got = [bytes(payload) for payload in page.payloads(0, len(page))]
    _require(got == page_payloads(spec), "the page's payloads differ")
    return Work(
        f"payloads(), {spec.records} x {spec.record_bytes} B",
        lambda: page.payloads(0, len(page)),
        spec.records,
    )


def sampler(work: Work) -> Callable[[], Sample]:
    """A contender for `cpu.interleave`: repeats the work until a sample is long enough."""

    def once(times: int) -> Sample:
        run = work.run
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(times):
            run()
        cpu = time.process_time() - cpu
        return Sample(cpu=cpu, wall=time.perf_counter() - wall, units=times * work.units)

    times = 1
    while once(times).wall < SAMPLE_SECONDS:
        times *= 2
    return lambda: once(times)
