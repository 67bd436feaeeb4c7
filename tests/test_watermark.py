"""The watermark: a frontier over deliveries in arrival order."""

from __future__ import annotations

import gc
import os
import sys
import threading
import weakref
from pathlib import Path

import pytest

from ruststream_kinesis._core import Page, Watermark
from tests.reference import record, response


def numbers(count: int, start: int = 0) -> list[str]:
    """Sequence numbers of the length that the service gives them."""
    return [f"4962{start + i:052}" for i in range(count)]


def page_of(sequence_numbers: list[str]) -> Page:
    return Page.parse(response(record(b"", number) for number in sequence_numbers))


def test_a_new_watermark_has_no_position() -> None:
    watermark = Watermark()
    assert watermark.position is None
    assert watermark.oldest_open is None
    assert (watermark.open, watermark.held, watermark.next_place) == (0, 0, 0)
    assert watermark.drained


def test_a_page_takes_consecutive_places() -> None:
    watermark = Watermark()
    assert watermark.deliver(page_of(["7", "8", "9"])) == 0
    assert watermark.deliver(page_of([])) == 3
    assert watermark.deliver_numbers([]) == 3
    assert watermark.deliver_numbers(["10"]) == 3
    assert (watermark.next_place, watermark.open, watermark.oldest_open) == (4, 4, 0)
    assert watermark.position is None


def test_case_w1_acks_3_1_2_store_nothing_1_3() -> None:
    watermark = Watermark()
    watermark.deliver_numbers(["1", "2", "3"])
    stored = [watermark.position if watermark.settle(place) else None for place in (2, 0, 1)]
    assert stored == [None, "1", "3"]


def test_settling_out_of_order_does_not_pass_the_gap() -> None:
    watermark = Watermark()
    watermark.deliver_numbers(["7", "8", "9"])
    assert watermark.settle(0)
    assert not watermark.settle(2)
    assert (watermark.position, watermark.open, watermark.oldest_open) == ("7", 1, 1)
    assert watermark.settle(1)
    assert (watermark.position, watermark.open, watermark.oldest_open) == ("9", 0, None)


def test_case_w2_settling_twice_late_or_what_never_was_changes_nothing() -> None:
    watermark = Watermark()
    watermark.deliver_numbers(["1", "2"])
    assert watermark.settle(0)
    for place in (0, 2, 1_000, -1, 2**64 - 1, 2**64, -(2**70)):
        assert not watermark.settle(place)
        assert not watermark.hold(place)
    assert not watermark.settle_range(2, 1_000)
    assert (watermark.position, watermark.open, watermark.held) == ("1", 1, 0)


def test_case_w2_an_ack_after_a_rewind_changes_nothing() -> None:
    watermark = Watermark()
    late = watermark.deliver_numbers(["1", "2"])
    watermark.hold(late)
    watermark.reset()
    assert (watermark.position, watermark.open, watermark.held) == (None, 0, 0)
    assert not watermark.settle(late)
    assert not watermark.settle_range(late, late + 2)
    assert watermark.position is None

    again = watermark.deliver_numbers(["1", "2"])
    assert again == 2, "a place is never given twice"
    assert not watermark.settle(late + 1)
    assert watermark.position is None
    assert watermark.settle(again)
    assert watermark.position == "1"


def test_case_w3_sequence_numbers_are_never_compared() -> None:
    watermark = Watermark()
    watermark.deliver_numbers(["99", "100", "5", "opaque"])
    seen = [watermark.position for place in range(4) if watermark.settle(place)]
    assert seen == ["99", "100", "5", "opaque"]


def test_a_held_delivery_stays_open_and_keeps_the_position() -> None:
    watermark = Watermark()
    watermark.deliver_numbers(["1", "2", "3"])
    assert watermark.hold(1)
    assert not watermark.hold(1)
    assert (watermark.held, watermark.drained) == (1, False)
    watermark.settle(0)
    watermark.settle(2)
    assert (watermark.position, watermark.open, watermark.held) == ("1", 1, 1)
    assert watermark.drained
    assert watermark.settle(1)
    assert (watermark.position, watermark.held, watermark.drained) == ("3", 0, True)


def test_a_run_is_settled_in_one_call() -> None:
    watermark = Watermark()
    watermark.deliver_numbers(numbers(100))
    watermark.deliver_numbers(numbers(100, start=100))
    watermark.hold(60)
    assert not watermark.settle_range(50, 150)
    assert (watermark.open, watermark.held) == (100, 0)
    assert watermark.settle_range(-5, 50)
    assert watermark.position == numbers(200)[149]
    assert not watermark.settle_range(180, 170)
    assert not watermark.settle_range(150, -1)
    assert watermark.open == 50
    assert watermark.settle_range(0, 2**70)
    assert (watermark.open, watermark.position) == (0, numbers(200)[199])


def test_some_places_are_settled_in_one_call_whichever_of_them_moves_the_watermark() -> None:
    watermark = Watermark()
    watermark.deliver_numbers(numbers(6))
    assert not watermark.settle_all([3, 5, 3])
    assert watermark.settle_all([0, 2, 99, -1])
    assert (watermark.position, watermark.open) == (numbers(6)[0], 2)
    assert not watermark.settle_all([])
    assert watermark.settle_all([4, 1])
    assert (watermark.position, watermark.open) == (numbers(6)[5], 0)


def test_a_run_takes_the_stragglers_with_it() -> None:
    watermark = Watermark()
    for start in (0, 1_000, 2_000):
        watermark.deliver_numbers(numbers(1_000, start))
        watermark.hold(start + 500)
        watermark.settle_range(start, start + 500)
        watermark.settle_range(start + 501, start + 1_000)
    assert (watermark.open, watermark.held, watermark.oldest_open) == (3, 3, 500)
    assert not watermark.settle_range(1_000, 2_000)
    assert watermark.position == numbers(500)[499]
    assert watermark.settle_range(0, 2_500)
    assert watermark.position == numbers(2_500)[2_499]
    assert watermark.settle(2_500)
    assert watermark.position == numbers(3_000)[2_999]


def test_an_aggregate_is_passed_with_its_last_delivery_only() -> None:
    watermark = Watermark()
    watermark.deliver_numbers(["1", "2", "2", "2", "3"])
    assert watermark.settle(0)
    assert not watermark.settle(1)
    assert not watermark.settle(3)
    assert watermark.position == "1"
    assert watermark.settle(2)
    assert watermark.position == "2"
    assert watermark.settle(4)
    assert watermark.position == "3"


def test_an_aggregate_whose_page_was_given_up_is_still_one() -> None:
    watermark = Watermark()
    first = watermark.deliver_numbers([*numbers(500), *["agg"] * 3, *numbers(500, start=500)])
    for place in (first + 501, first + 502):
        watermark.hold(place)
    watermark.settle_range(first, first + 501)
    watermark.settle_range(first + 503, first + 1_003)
    assert watermark.position == numbers(500)[-1]
    assert not watermark.settle(first + 501)
    assert watermark.position == numbers(500)[-1]
    assert watermark.settle(first + 502)
    assert watermark.position == numbers(1_000)[-1]


def test_an_aggregate_that_opens_the_shard_gives_no_position_before_it_ends() -> None:
    watermark = Watermark()
    watermark.deliver_numbers(["agg", "agg"])
    assert not watermark.settle(0)
    assert watermark.position is None
    assert watermark.settle(1)
    assert watermark.position == "agg"


def test_a_watermark_does_not_keep_the_page() -> None:
    watermark = Watermark()
    page = page_of(numbers(10))
    gone = weakref.ref(page)
    watermark.deliver(page)
    del page
    gc.collect()
    assert gone() is None
    watermark.settle_range(0, 5)
    assert watermark.position == numbers(5)[-1]


def test_settling_from_many_threads_loses_nothing() -> None:
    watermark = Watermark()
    count, threads = 20_000, 4
    watermark.deliver_numbers(numbers(count))
    moved = []

    def settle(first: int) -> None:
        moved.append(sum(watermark.settle(place) for place in range(first, count, threads)))

    workers = [threading.Thread(target=settle, args=(first,)) for first in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert (watermark.open, watermark.position) == (0, numbers(count)[-1])
    assert sum(moved) >= 1


linux_only = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="reads /proc/self/statm"
)


def resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def pass_one_page(watermark: Watermark, body: bytes, *, hold: bool = False) -> None:
    """Deliver a page and settle it, all but its first record if that is held."""
    page = Page.parse(body)
    place = watermark.deliver(page)
    if hold:
        watermark.hold(place)
    watermark.settle_range(place + hold, place + len(page))


@linux_only
def test_case_w4_memory_does_not_grow_with_what_passes_an_open_delivery() -> None:
    watermark = Watermark()
    body = response(record(b"", number) for number in numbers(1_000))
    watermark.deliver_numbers(["held", "running"])
    watermark.hold(0)
    for _ in range(100):
        pass_one_page(watermark, body)
    before = resident_bytes()
    for _ in range(10_000):
        pass_one_page(watermark, body)
    assert resident_bytes() - before < 1_048_576
    assert watermark.next_place == 2 + 100_000 + 10_000_000
    assert (watermark.open, watermark.position) == (2, None)


@linux_only
@pytest.mark.parametrize("page_records", [1, 10, 1_000])
def test_case_w4_memory_follows_the_held_deliveries_not_their_pages(page_records: int) -> None:
    watermark = Watermark()
    body = response(record(b"", number) for number in numbers(page_records))
    for _ in range(10):
        pass_one_page(watermark, body, hold=True)
    before = resident_bytes()
    for _ in range(10_000):
        pass_one_page(watermark, body, hold=True)
    # A whole page of 1,000 would be 600 MB.
    assert resident_bytes() - before < 10_000 * 512
    assert (watermark.open, watermark.held, watermark.drained) == (10_010, 10_010, True)


@linux_only
def test_case_w4_a_running_delivery_does_not_keep_its_page_either() -> None:
    watermark = Watermark()
    body = response(record(b"", number) for number in numbers(1_000))
    before = resident_bytes()
    for _ in range(2_000):
        place = watermark.deliver(Page.parse(body))
        watermark.settle_range(place + 1, place + 1_000)
    assert resident_bytes() - before < 2_000 * 2_048
    assert (watermark.open, watermark.held) == (2_000, 0)


class TestLastOfRecord:
    def test_it_is_the_last_of_the_aggregate(self):
        watermark = Watermark()
        watermark.deliver_numbers(["1", "2", "2", "2", "3"])
        assert [watermark.last_of_record(place) for place in range(5)] == [0, 3, 3, 3, 4]
        assert watermark.last_of_record(9) == 9

    @pytest.mark.parametrize("pages", [1, 3])
    def test_it_is_known_as_long_as_something_of_the_record_is_open(self, pages: int):
        """Of a page with few open deliveries only those are kept."""
        watermark = Watermark()
        for page in range(pages):
            numbers = [f"{page}-{n}" for n in range(1_000)]
            watermark.deliver_numbers([*numbers, *[f"{page}-whole"] * 10, f"{page}-end"])
        whole = range(1_000, 1_010)
        watermark.settle_range(0, 1_005)
        watermark.settle(1_010)
        for place in whole:
            assert watermark.last_of_record(place) == 1_009
        watermark.settle(1_009)
        # Nobody waits for what is settled.
        assert watermark.last_of_record(1_005) in (1_008, 1_009)
        watermark.settle_range(1_005, 1_009)
        assert watermark.position == "0-end"
