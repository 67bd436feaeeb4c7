"""The native core through pytest-benchmark: `pytest benches/bench_core.py`.

The work and its checks are in `core.py`. Nothing here asserts a time.
"""

from __future__ import annotations

import pytest

pytest.importorskip("pytest_benchmark")


from typing import TYPE_CHECKING

from benches import core
from benches.pages import FULL, ORDINARY, Spec

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

PAGES = pytest.mark.parametrize(
    "spec", [pytest.param(ORDINARY, id="1000x512B"), pytest.param(FULL, id="10000x1048B")]
)


def _time(benchmark: BenchmarkFixture, work: core.Work) -> None:
    benchmark.extra_info["records"] = work.units
    benchmark(work.run)


@pytest.mark.benchmark(group="a page of 1,000 records, one by one")
def test_msgspec_decodes_the_payloads(benchmark: BenchmarkFixture) -> None:
    _time(benchmark, core.payload_decode(ORDINARY))


@pytest.mark.benchmark(group="a page of 1,000 records, one by one")
@pytest.mark.parametrize("headers", [False, True], ids=["plain", "headers"])
def test_envelope_decode_and_both_watermark_calls(
    benchmark: BenchmarkFixture, headers: bool
) -> None:
    _time(benchmark, core.envelope_and_watermark(ORDINARY, headers=headers))


@pytest.mark.benchmark(group="a page of 1,000 records, one by one")
@pytest.mark.parametrize("headers", [False, True], ids=["plain", "headers"])
def test_envelope_decode(benchmark: BenchmarkFixture, headers: bool) -> None:
    _time(benchmark, core.envelope_decode(ORDINARY, headers=headers))


@pytest.mark.benchmark(group="a page of 1,000 records, one by one")
def test_envelope_encode(benchmark: BenchmarkFixture) -> None:
    _time(benchmark, core.envelope_encode(ORDINARY))


@pytest.mark.benchmark(group="a page of 1,000 records, one by one")
def test_deliver_and_settle(benchmark: BenchmarkFixture) -> None:
    _time(benchmark, core.watermark_calls(ORDINARY))


@pytest.mark.benchmark(group="whole pages")
@PAGES
def test_page_parse(benchmark: BenchmarkFixture, spec: Spec) -> None:
    _time(benchmark, core.page_parse(spec))


@pytest.mark.benchmark(group="whole pages")
@PAGES
def test_payloads(benchmark: BenchmarkFixture, spec: Spec) -> None:
    _time(benchmark, core.page_payload_list(spec))
