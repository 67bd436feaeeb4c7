"""The metrics of an application, as Prometheus takes them.

Everything is read from `app.state()` at the time of a scrape. Counters are those of the run: where an
application runs again in one process, they begin at zero, which Prometheus takes for a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, ref

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from ruststream_kinesis.health import judge_health
from ruststream_kinesis.times import BUCKETS, HandlerTimes

if TYPE_CHECKING:
    from ruststream_kinesis.app import RustStream
    from ruststream_kinesis.state import AppState, PublishState, ShardState, SubscriptionState

__all__ = ["AppCollector", "collector_of", "text_of"]

_PREFIX = "ruststream_kinesis_"
_BY_SUBSCRIPTION = ("stream", "group")
_BY_SHARD = ("stream", "group", "shard_id")

# Name, help, and the value of a subscription.
_COUNTERS: tuple[tuple[str, str, Callable[[SubscriptionState], float]], ...] = (
    ("records_handled", "Records whose handler returned.", lambda s: s.counters.handled),
    ("handler_errors", "Records whose handler raised.", lambda s: s.counters.failed),
    ("decode_errors", "Records that are not of the handler's type.",
     lambda s: s.counters.undecodable),
    ("replies", "Replies that are durably in their stream.", lambda s: s.counters.replies),
    ("reads", "GetRecords calls that were answered.", lambda s: s.source.counters.reads),
    ("records_read", "Records that they brought.", lambda s: s.source.counters.records),
    ("checkpoint_writes", "Checkpoints that were stored.",
     lambda s: s.source.counters.checkpoints),
    ("checkpoint_errors", "Checkpoint writes that failed, and were made again.",
     lambda s: s.source.counters.checkpoint_errors),
    ("leases_lost", "Shards that were lost while they were held.",
     lambda s: s.source.counters.leases_lost),
)  # fmt: skip
_OUTCOMES: tuple[tuple[str, Callable[[SubscriptionState], float]], ...] = (
    ("dropped", lambda s: s.counters.dropped),
    ("held", lambda s: s.counters.held),
    ("retried", lambda s: s.counters.retried),
    ("dead_lettered", lambda s: s.counters.dead_lettered),
)
_GAUGES: tuple[tuple[str, str, Callable[[SubscriptionState], float]], ...] = (
    ("shards_held", "Shards that this instance holds.", lambda s: len(s.shards)),
    ("queued_records", "Records between readers and handlers.", lambda s: s.queued),
    ("waiting_copies", "Copies of retry_after() that are not due yet.",
     lambda s: s.waiting_copies),
    ("running_handlers", "Handlers that run now.", lambda s: len(s.running)),
)  # fmt: skip
_SHARD_GAUGES: tuple[tuple[str, str, Callable[[ShardState], float | None]], ...] = (
    ("shard_lag_seconds", "How far the last read was behind the tip.",
     lambda s: None if s.lag_ms is None else s.lag_ms / 1000),
    ("shard_polled_ago_seconds",
     "Time since a read was answered, or since reading began; absent while nobody is to read.",
     lambda s: s.reading_for if s.polled_ago is None else s.polled_ago),
    ("shard_open_records", "Records that are not settled.", lambda s: s.open),
    ("shard_held_records", "Those of them that hold the checkpoint.", lambda s: s.held),
    ("shard_held_seconds", "Time since the first of them was; 0 where nothing is held.",
     lambda s: s.held_for or 0.0),
    ("shard_waiting_for_handlers", "1 while a page waits for handlers to make room.",
     lambda s: float(s.waiting)),
)  # fmt: skip


class AppCollector(Collector):
    """Yields the metrics of one application.

    Args:
        app: The application; the collector keeps it no longer than others do.
    """

    def __init__(self, app: RustStream) -> None:
        self._app = ref(app)
        self.scrapes = 0
        """How often it was asked: tells whether a registry has it."""

    def describe(self) -> Iterable[Metric]:
        """A name that no other collector may have: an application is registered once."""
        return [InfoMetricFamily(_PREFIX + "app", "The application and its instance.")]

    def collect(self) -> Iterator[Metric]:
        """The metrics at this moment."""
        self.scrapes += 1
        app = self._app()
        if app is None:
            return
        yield from _metrics(app.state(), app.handler_times)


class _Taken(Collector):
    """The metrics of a state that was taken before."""

    def __init__(self, state: AppState, times: HandlerTimes | None) -> None:
        self._state = state
        self._times = times

    def collect(self) -> Iterator[Metric]:
        return _metrics(self._state, self._times)


def text_of(state: AppState, times: HandlerTimes | None) -> bytes:
    """The metrics of a state, as a scrape gets them; from any thread."""
    registry = CollectorRegistry()
    registry.register(_Taken(state, times))
    return generate_latest(registry)


def _metrics(state: AppState, times: HandlerTimes | None) -> Iterator[Metric]:
    yield from _of_app(state)
    yield from _of_subscriptions(state.subscriptions)
    yield from _of_shards(state.subscriptions)
    yield from _of_publishing(state.published)
    if times is not None:
        yield _of_times(times)


def _of_app(state: AppState) -> Iterator[Metric]:
    yield InfoMetricFamily(
        _PREFIX + "app",
        "The application and its instance.",
        {"title": state.title, "version": state.version, "instance_id": state.instance},
    )
    health = judge_health(state)
    for name, text, value in (
        ("live", "1 while the service runs and has not failed.", float(health.live)),
        ("ready", "1 while it reads.", float(health.ready)),
        ("problems", "Reasons that app.health() names.", float(len(health.reasons))),
        ("uptime_seconds", "Time since the service was started.", state.running_for or 0.0),
    ):
        yield GaugeMetricFamily(_PREFIX + name, text, value)


def _of_subscriptions(subscriptions: tuple[SubscriptionState, ...]) -> Iterator[Metric]:
    for name, text, value in _COUNTERS:
        counter = CounterMetricFamily(_PREFIX + name, text, labels=_BY_SUBSCRIPTION)
        for each in subscriptions:
            counter.add_metric(_labels(each), value(each))
        yield counter
    outcomes = CounterMetricFamily(
        _PREFIX + "outcomes",
        "Records that were not simply settled as done, by what became of them.",
        labels=(*_BY_SUBSCRIPTION, "outcome"),
    )
    errors = CounterMetricFamily(
        _PREFIX + "read_errors",
        "Reads and iterators that failed, throttled ones included, by error code.",
        labels=(*_BY_SUBSCRIPTION, "code"),
    )
    for each in subscriptions:
        for outcome, value in _OUTCOMES:
            outcomes.add_metric([*_labels(each), outcome], value(each))
        for code, count in each.source.counters.read_errors.items():
            errors.add_metric([*_labels(each), code], count)
    yield outcomes
    yield errors
    for name, text, value in _GAUGES:
        gauge = GaugeMetricFamily(_PREFIX + name, text, labels=_BY_SUBSCRIPTION)
        for each in subscriptions:
            gauge.add_metric(_labels(each), value(each))
        yield gauge
    store = GaugeMetricFamily(
        _PREFIX + "lease_store_answered_ago_seconds",
        "Time since the lease store was read last.",
        labels=_BY_SUBSCRIPTION,
    )
    for each in subscriptions:
        if each.source.store_answered_ago is not None:
            store.add_metric(_labels(each), each.source.store_answered_ago)
    yield store


def _of_shards(subscriptions: tuple[SubscriptionState, ...]) -> Iterator[Metric]:
    for name, text, value in _SHARD_GAUGES:
        gauge = GaugeMetricFamily(_PREFIX + name, text, labels=_BY_SHARD)
        for each in subscriptions:
            labels = _labels(each)
            for shard in each.shards:
                if (found := value(shard)) is not None:
                    gauge.add_metric([*labels, shard.shard_id], found)
        yield gauge


def _of_publishing(published: tuple[PublishState, ...]) -> Iterator[Metric]:
    records = CounterMetricFamily(
        _PREFIX + "published_records", "Records that were put into a stream.", labels=("stream",)
    )
    errors = CounterMetricFamily(
        _PREFIX + "publish_errors",
        "Attempts at a record that were refused, throttled or not answered.",
        labels=("stream",),
    )
    for each in published:
        records.add_metric([each.stream], each.counters.records)
        errors.add_metric([each.stream], each.counters.errors)
    yield records
    yield errors


def _of_times(times: HandlerTimes) -> Metric:
    histogram = HistogramMetricFamily(
        _PREFIX + "handler_duration_seconds",
        "How long calls of a handler took; a batch is one.",
        labels=_BY_SUBSCRIPTION,
    )
    bounds = [*map(str, BUCKETS), "+Inf"]
    for (stream, group), each in list(times.histograms.items()):
        counts = list(zip(bounds, accumulate(each.counts), strict=True))
        histogram.add_metric([stream, group or ""], counts, each.total)
    return histogram


def _labels(subscription: SubscriptionState) -> list[str]:
    return [subscription.stream, subscription.group or ""]


_collectors: WeakKeyDictionary[RustStream, AppCollector] = WeakKeyDictionary()


def collector_of(app: RustStream) -> AppCollector:
    """The collector of an application."""
    found = _collectors.get(app)
    if found is None:
        found = _collectors[app] = AppCollector(app)
    return found
