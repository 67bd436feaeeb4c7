"""Watching rows: when one counts as left, and what is remembered."""

from __future__ import annotations

from ruststream_kinesis.leases.sightings import Look, Sightings


def look(asked: float, answered: float | None = None) -> Look:
    return Look(asked, asked if answered is None else answered)


def test_a_row_that_does_not_change_for_its_period_is_left():
    seen = Sightings()
    assert not seen.left("r", ("me", 1), 10.0, look(0))
    assert not seen.left("r", ("me", 1), 10.0, look(9.9))
    assert seen.left("r", ("me", 1), 10.0, look(10.0))
    assert seen.left("r", ("me", 1), 10.0, look(11.0))


def test_every_write_starts_the_period_anew():
    seen = Sightings()
    for counter in range(5):
        assert not seen.left("r", ("me", counter), 10.0, look(counter * 9.0))
        assert not seen.left("r", ("me", counter), 10.0, look(counter * 9.0 + 8.9))


def test_a_row_made_anew_with_a_counter_seen_before_is_another():
    seen = Sightings()
    seen.left("r", ("me#1", 1), 10.0, look(0))
    assert not seen.left("r", ("you#2", 1), 10.0, look(20))


def test_slow_answers_do_not_shorten_the_period():
    """What lies between the two reads at the table is what counts, whatever the network did."""
    seen = Sightings()
    # Read by the table at any time from 0 to 5; then at any time from 12 to 100.
    seen.left("r", ("me", 1), 10.0, look(0, 5))
    assert not seen.left("r", ("me", 1), 10.0, look(12, 100))
    assert seen.left("r", ("me", 1), 10.0, look(15, 16))


def test_a_row_that_is_forgotten_is_watched_anew():
    seen = Sightings()
    seen.left("r", ("me", 1), 10.0, look(0))
    seen.left("s", ("me", 1), 10.0, look(0))
    seen.keep({"s"})
    assert len(seen) == 1
    assert not seen.left("r", ("me", 1), 10.0, look(20))
    assert seen.left("s", ("me", 1), 10.0, look(20))
    seen.forget("s")
    assert not seen.left("s", ("me", 1), 10.0, look(20))
