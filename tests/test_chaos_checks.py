"""The rules of the chaos runs, on stories that are told: each one can be broken, and is then seen."""

from __future__ import annotations

import pytest

from tests.chaos.book import Acquired, Book, Fault, Handled, Line, Pen, Put, Released, Started
from tests.chaos.checks import (
    Story,
    Tenures,
    disordered,
    idle,
    lost,
    overlapping,
    repeats,
    slept_away,
    stolen,
    takeovers,
    unfenced,
)
from tests.chaos.report import judge
from tests.chaos.script import script

SHARD = "shard"


def handled(n: int, begin: float, end: float | None = None, *, key: str = "k") -> Handled:
    """A handling that takes a tenth of a second by default."""
    end = begin + 0.1 if end is None else end
    return Handled(key, n, SHARD, f"{key}-{n}", 1, begin, end, 0.0, 1)


def told(
    handlings: dict[str, list[Handled]],
    *faults: Fault,
    acquired: dict[str, list[float]] | None = None,
    released: dict[str, list[Released]] | None = None,
) -> Story:
    """A story on one shard; every process takes it at its first handling unless said otherwise."""
    took = acquired or {p: [min(h.begin for h in lines)] for p, lines in handlings.items() if lines}
    return Story(
        handled=handlings,
        acquired={p: [Acquired(SHARD, at) for at in times] for p, times in took.items()},
        released=released or {},
        faults=list(faults),
    )


def causes(story: Story) -> list[str]:
    return [each.cause for each in repeats(story, Tenures(story))]


def test_a_record_that_nobody_handled_is_lost():
    story = told({"a": [handled(0, 1)]})
    story.puts = [Put("k", n, SHARD, f"k-{n}", 0.5) for n in (0, 1)]
    (found,) = lost(story)
    assert "k #1" in found


def test_a_key_may_step_back_and_goes_on_from_there():
    steps = [0, 1, 2, 1, 2, 3]
    assert disordered(told({"a": [handled(n, at) for at, n in enumerate(steps)]})) == []


@pytest.mark.parametrize("steps", [[1], [0, 2], [0, 1, 2, 0, 2], [0, 1, 2, 1, 3]])
def test_a_key_may_not_skip_a_number(steps: list[int]):
    assert len(disordered(told({"a": [handled(n, at) for at, n in enumerate(steps)]}))) == 1


def test_a_key_is_in_order_across_processes():
    assert disordered(told({"a": [handled(0, 1), handled(2, 3)], "b": [handled(1, 2)]})) == []


def test_two_processes_at_one_key_are_seen_unless_one_of_them_slept():
    both = {"a": [handled(0, 1.0, 5.0)], "b": [handled(0, 4.0)]}
    assert len(overlapping(told(both))) == 1
    assert overlapping(told(both, Fault("pause", "a", 2.0, 4.5))) == []
    # The one that went on is no excuse for the other.
    assert len(overlapping(told(both, Fault("pause", "b", 2.0, 4.5)))) == 1


def test_one_process_at_one_key_twice_is_seen_whatever_happened():
    story = told({"a": [handled(0, 1.0, 5.0), handled(1, 4.0)]}, Fault("pause", "a", 2.0, 4.5))
    assert len(overlapping(story)) == 1


def test_a_long_handling_is_compared_with_all_that_begin_within_it():
    story = told({"a": [handled(0, 1.0, 9.0)], "b": [handled(1, 2.0), handled(2, 5.0)]})
    assert len(overlapping(story)) == 2


def test_what_a_process_starts_after_another_one_had_its_shard_is_unfenced():
    story = told({"a": [handled(0, 1.0), handled(1, 8.0)], "b": [handled(0, 5.0)]})
    (found,) = unfenced(story, Tenures(story))
    assert "a began k #1" in found
    # One that was started before and ends late is not.
    story = told({"a": [handled(0, 1.0, 8.0)], "b": [handled(0, 5.0)]})
    assert unfenced(story, Tenures(story)) == []


def test_a_process_that_got_its_shard_again_may_go_on():
    story = told(
        {"a": [handled(0, 1.0), handled(2, 8.0)], "b": [handled(1, 5.0)]},
        acquired={"a": [0.5, 7.0], "b": [4.0]},
    )
    assert unfenced(story, Tenures(story)) == []


def test_a_process_that_never_had_the_shard_is_seen():
    story = told({"a": [handled(0, 1.0)]}, acquired={"b": [0.5]})
    (found,) = unfenced(story, Tenures(story))
    assert "inf s after" in found


TWICE = {"a": [handled(0, 1.0), handled(1, 2.0)], "b": [handled(1, 20.0)]}


def test_a_repeat_is_put_down_to_what_ended_the_first_tenure():
    release = {"a": [Released(SHARD, 3.0, handed_over=False)]}
    hand_over = {"a": [Released(SHARD, 3.0, handed_over=True)]}
    stop = Fault("stop", "a", 2.5, 4.0)
    assert causes(told(TWICE)) == ["unexplained"]
    assert causes(told(TWICE, Fault("kill", "a", 3.0, 3.0))) == ["kill"]
    assert causes(told(TWICE, Fault("pause", "a", 3.0, 17.0))) == ["pause"]
    assert causes(told(TWICE, stop, released=release)) == ["stop"]
    assert causes(told(TWICE, released=hand_over)) == ["hand-over"]
    assert causes(told(TWICE, released=release)) == ["released"]


def test_a_repeat_by_a_process_that_had_lost_the_shard_is_no_re_delivery():
    handlings = {"a": [handled(0, 1.0), handled(1, 20.0)], "b": [handled(1, 15.0)]}
    assert causes(told(handlings, Fault("pause", "a", 2.0, 19.0))) == ["not fenced"]


def test_a_sleeper_that_woke_in_time_and_got_its_shard_again_was_not_taken_over():
    story = told(
        {"a": [handled(0, 1.0)]}, Fault("pause", "a", 2.0, 14.0), acquired={"a": [1.0, 14.1]}
    )
    assert takeovers(story, Tenures(story), "pause") == []


def test_a_pause_is_no_excuse_once_the_shard_was_kept_over_it():
    late = {"a": [Released(SHARD, 19.0, handed_over=True)]}
    assert causes(told(TWICE, Fault("pause", "a", 1.5, 13.0), released=late)) == ["hand-over"]
    story = told(TWICE, Fault("pause", "a", 1.5, 13.0), released=late)
    assert takeovers(story, Tenures(story), "pause") == []


def test_what_befell_another_process_or_another_time_excuses_nothing():
    assert causes(told(TWICE, Fault("kill", "b", 3.0, 3.0))) == ["unexplained"]
    assert causes(told(TWICE, Fault("kill", "a", 30.0, 30.0))) == ["unexplained"]


def test_a_record_that_comes_twice_in_one_tenure_is_no_re_delivery():
    story = told({"a": [handled(0, 1.0), handled(0, 2.0)]}, Fault("kill", "a", 3.0, 3.0))
    assert causes(story) == ["same tenure"]


def test_a_blocked_process_keeps_its_shards():
    block = Fault("block", "a", 2.0, 14.0)
    story = told({"a": [handled(0, 1.0)], "b": [handled(1, 9.0)]}, block)
    assert len(stolen(story, Tenures(story))) == 1
    # It was on its way to the other one before.
    on_its_way = {"a": [Released(SHARD, 2.2, handed_over=True)]}
    story = told({"a": [handled(0, 1.0)], "b": [handled(1, 9.0)]}, block, released=on_its_way)
    assert stolen(story, Tenures(story)) == []


def test_a_take_over_is_timed_from_the_kill_to_lease_and_record():
    kill = Fault("kill", "a", 3.0, 3.0)
    near = Fault("start", "c", 5.0, 6.0)
    far = Fault("stop", "d", 50.0, 51.0)
    story = told(
        {"a": [handled(0, 1.0)], "b": [handled(1, 18.0)]}, kill, near, far,
        acquired={"a": [0.5], "b": [16.0]},
    )  # fmt: skip
    (found,) = takeovers(story, Tenures(story), "kill")
    assert (found.acquired, found.handled, found.disturbed) == (13.0, 15.0, ("start c",))


def test_what_is_given_up_is_timed_until_another_one_has_it():
    handlings = {"a": [handled(0, 1.0)], "b": [handled(1, 5.0)]}
    given = {"a": [Released(SHARD, 3.0, handed_over=True)]}
    story = told(handlings, released=given)
    assert idle(story, Tenures(story)) == [2.0]
    # One that slept gave up what had run out long ago.
    story = told(handlings, Fault("pause", "a", 1.5, 2.9), released=given)
    assert idle(story, Tenures(story)) == []


def test_shards_are_counted_that_were_taken_from_a_sleeper_before_it_woke():
    handlings = {"a": [handled(0, 1.0)], "b": [handled(1, 15.0)]}
    for wakes, count in ((20.0, 1), (14.0, 0)):
        story = told(handlings, Fault("pause", "a", 2.0, wakes))
        assert slept_away(story, Tenures(story)) == count


def test_a_late_take_over_is_a_violation_only_where_nothing_else_was_near():
    kill, near = Fault("kill", "a", 3.0, 3.0), Fault("pause", "b", 5.0, 18.0)
    handlings = {"a": [handled(0, 1.0)], "b": [handled(1, 40.0)]}
    (rule,) = judge(told(handlings, kill), 60, []).failed
    assert "taken over within" in rule
    assert judge(told(handlings, kill, near), 60, []).failed == {}


def test_a_process_that_failed_fails_the_run():
    assert list(judge(told({}), 60, ["a exited with 1"]).failed.values()) == [["a exited with 1"]]


@pytest.mark.parametrize("seed", range(5))
def test_the_script_is_the_seed_s_and_leaves_one_kill_a_round_alone(seed: int):
    steps = script(seed, 300)
    assert steps == script(seed, 300)
    kinds = {step.kind for step in script(seed, 60)}
    assert kinds == {"kill", "pause", "stop", "start", "split", "merge", "block"}
    for alone in (step for step in steps if step.alone):
        near = [s.kind for s in steps if alone.at - 6 < s.at < alone.at + 17 and s is not alone]
        assert set(near) <= {"split", "merge"}


def test_a_book_is_read_while_it_is_written(tmp_path):
    book, pen = Book(tmp_path / "book"), Pen(tmp_path / "book")
    lines: list[Line] = [Started(1.0), handled(0, 1), Fault("kill", "a", 1.0, 1.0)]
    pen.write(lines[0])
    assert book.read() == lines[:1]
    with (tmp_path / "book").open("ab") as file:
        file.write(b'{"type":"started",')
    assert book.read() == lines[:1]
    with (tmp_path / "book").open("ab") as file:
        file.write(b'"at":1.0}\n')
    pen.write(lines[1])
    assert book.read() == [lines[0], lines[0], lines[1]]
