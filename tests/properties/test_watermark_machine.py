"""The watermark against its definition, through any order of events."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ruststream_kinesis._core import Page, Watermark
from tests import reference


class WatermarkMachine(RuleBasedStateMachine):
    """Deliver, settle in any order (twice, late, never given), hold, reset."""

    def __init__(self) -> None:
        super().__init__()
        self.native = Watermark()
        self.reference = reference.Watermark()
        self.given = 0
        # Since the last reset: the places of each number, and the furthest position seen.
        self.places: dict[str, list[int]] = {}
        self.reached = -1

    def fresh_number(self) -> str:
        """A number like the service's, in no order as text, and never the same twice."""
        self.given += 1
        return f"{self.given * 7919 % 1000}{self.given:053}"

    def deliver(self, sizes: list[int], *, as_page: bool) -> None:
        numbers = [n for size in sizes for n in [self.fresh_number()] * size]
        if as_page:
            body = reference.response(reference.record(b"", number) for number in numbers)
            base = self.native.deliver(Page.parse(body))
        else:
            base = self.native.deliver_numbers(numbers)
        assert base == self.reference.deliver_numbers(numbers)
        for i, number in enumerate(numbers):
            self.places.setdefault(number, []).append(base + i)

    @rule(count=st.integers(0, 8), as_page=st.booleans())
    def deliver_records(self, count: int, *, as_page: bool) -> None:
        self.deliver([1] * count, as_page=as_page)

    @rule(sizes=st.lists(st.integers(1, 4), max_size=6), as_page=st.booleans())
    def deliver_aggregates(self, sizes: list[int], *, as_page: bool) -> None:
        self.deliver(sizes, as_page=as_page)

    @rule(
        count=st.integers(30, 150),
        aggregate=st.integers(1, 5),
        left=st.sets(st.integers(0, 150), max_size=4),
        hold=st.booleans(),
    )
    def deliver_a_page_and_settle_most_of_it(
        self, count: int, aggregate: int, left: set[int], *, hold: bool
    ) -> None:
        """Leaves so little of a large page that it is given up."""
        base = self.native.next_place
        self.deliver([1] * (count // 2) + [aggregate] + [1] * (count // 2), as_page=False)
        for i in sorted(left):
            if hold:
                assert self.native.hold(base + i) == self.reference.hold(base + i)
        start = base
        for stop in [*(base + i for i in sorted(left)), self.native.next_place]:
            moved = self.native.settle_range(start, stop)
            assert moved == self.reference.settle_range(start, stop)
            start = stop + 1

    @rule(data=st.data())
    def settle_any(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(-1, self.reference.next_place + 1))
        assert self.native.settle(place) == self.reference.settle(place)

    @rule(data=st.data())
    def settle_some(self, data: st.DataObject) -> None:
        place = st.integers(-1, self.reference.next_place + 1)
        places = data.draw(st.lists(place, max_size=12))
        assert self.native.settle_all(places) == self.reference.settle_all(places)

    @precondition(lambda self: self.reference.open)
    @rule()
    def settle_the_oldest(self) -> None:
        place = self.reference.oldest_open
        assert place is not None
        assert self.native.settle(place) == self.reference.settle(place)

    @rule(data=st.data())
    def settle_a_run(self, data: st.DataObject) -> None:
        places = st.integers(-1, self.reference.next_place + 1)
        start, stop = data.draw(places), data.draw(places)
        moved = self.native.settle_range(start, stop)
        assert moved == self.reference.settle_range(start, stop)

    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(-1, self.reference.next_place + 1))
        assert self.native.hold(place) == self.reference.hold(place)

    @rule()
    def reset(self) -> None:
        self.native.reset()
        self.reference.reset()
        self.places.clear()
        self.reached = -1

    @invariant()
    def it_is_what_the_definition_says(self) -> None:
        for name in ("position", "open", "held", "next_place", "oldest_open", "drained"):
            assert getattr(self.native, name) == getattr(self.reference, name), name

    @invariant()
    def the_position_passes_nothing_open_and_never_goes_back(self) -> None:
        position = self.native.position
        if position is None:
            assert self.reached == -1
            return
        last_place = self.places[position][-1]
        oldest = self.native.oldest_open
        assert oldest is None or last_place < oldest
        assert last_place >= self.reached
        self.reached = last_place


WatermarkMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None
)
TestWatermark = WatermarkMachine.TestCase
