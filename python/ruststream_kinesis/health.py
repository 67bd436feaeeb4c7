"""Whether a service is well: judged from what `app.state()` says, and from nothing else.

Invariant: every reason says in words what is wrong and where; it holds no text of anybody's error
and nothing of a record, since it is shown to whoever may ask a probe.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ruststream_kinesis.heartbeat import LEASE_DURATION
from ruststream_kinesis.state import AppState, ShardState, SubscriptionState
from ruststream_kinesis.wording import label

__all__ = ["STALE_AFTER", "Health", "judge_health"]

# Seconds without an answer after which a shard counts as not read. Failing reads are tried again at
# least every 10 s, and one that is not answered is cut off after 30: two of those are no accident.
STALE_AFTER = 60.0
# A shard that is read to its tip is read that many times in this time, however rare its reads.
_MISSED = 3


@dataclass(frozen=True, slots=True)
class Health:
    """How a service is, at one moment."""

    live: bool
    """It was started, and nothing has failed that ends it."""
    ready: bool
    """It runs and reads: every subscription is open, and has read one of its shards lately, or left
    all of them to other instances."""
    reasons: tuple[str, ...]
    """What is wrong, whether or not it costs the readiness; empty where nothing is."""


def judge_health(state: AppState, stale_after: float = STALE_AFTER) -> Health:
    """Judges a state.

    Args:
        state: What the application is at.
        stale_after: Seconds without an answer after which a shard counts as not read; longer where
            the subscription polls that rarely.
    """
    reasons = list(_phase(state))
    failed = state.failure is not None
    live = state.running and not failed
    ready = live and state.phase == "running"
    for each in state.subscriptions:
        stale = max(stale_after, _MISSED * each.source.poll_interval)
        reasons += _store(each)
        reasons += [_unread(each, shard, stale) for shard in each.shards if _stale(shard, stale)]
        reasons += _given_up(each)
        # What is not open yet is part of the service's phase.
        if each.opened and not _reads(each, stale):
            ready = False
            if not each.shards:
                reasons.append(f"no shard of stream {_name(each)} is held yet")
    return Health(live, ready, tuple(reasons))


def _name(subscription: SubscriptionState) -> str:
    return label(subscription.stream, subscription.group)


def _phase(state: AppState) -> Iterator[str]:
    if state.failure is not None:
        yield f"the service has failed ({state.failure}); its log says more"
    elif state.phase == "starting":
        waits = [_name(each) for each in state.subscriptions if not each.opened]
        yield "the service is starting" + (f"; not open yet: {', '.join(waits)}" if waits else "")
    elif state.phase == "stopping":
        yield "the service is stopping"
    elif not state.running:
        yield "the service does not run"


def _reads(subscription: SubscriptionState, stale: float) -> bool:
    """Whether one of its shards was read lately, or none is left for this instance."""
    if not subscription.shards:
        owners = subscription.source.owners
        return bool(owners) and all(each.finished or each.owner is not None for each in owners)
    return any(
        shard.reading_for is None or shard.waiting or _answered(shard, stale)
        for shard in subscription.shards
    )


def _answered(shard: ShardState, stale: float) -> bool:
    return shard.polled_ago is not None and shard.polled_ago <= stale


def _stale(shard: ShardState, stale: float) -> bool:
    """Whether a shard that has a reader was not read for too long."""
    if shard.reading_for is None:
        return False
    ago = shard.reading_for if shard.polled_ago is None else shard.polled_ago
    return ago > stale


def _unread(subscription: SubscriptionState, shard: ShardState, stale: float) -> str:
    ago = shard.reading_for if shard.polled_ago is None else shard.polled_ago
    if shard.waiting:
        why = "it waits for handlers, which are slow or stuck"
    elif shard.read_error is not None:
        why = f"its reads fail ({shard.read_error})"
    else:
        why = "its reads are not answered"
    return (
        f"shard {shard.shard_id} of stream {_name(subscription)} was not read for "
        f"{ago or 0.0:.0f} s (more than {stale:g}): {why}"
    )


def _store(subscription: SubscriptionState) -> Iterator[str]:
    ago, error = subscription.source.store_answered_ago, subscription.source.store_error
    # A pass that failed once is made again long before a lease runs out.
    if (ago is not None and ago > LEASE_DURATION) or (error is not None and ago is None):
        since = "has not answered yet" if ago is None else f"has not answered for {ago:.0f} s"
        why = "" if error is None else f" ({error})"
        yield f"the lease store of stream {_name(subscription)} {since}{why}"
    elif error is not None:
        yield f"leases of stream {_name(subscription)} are not renewed now ({error})"


def _given_up(subscription: SubscriptionState) -> Iterator[str]:
    for each in subscription.source.owners:
        if each.error is not None:
            yield (
                f"shard {each.shard_id} of stream {_name(subscription)} is not read here: it was "
                f"given up because its reads failed ({each.error}), and is taken again by itself"
            )
