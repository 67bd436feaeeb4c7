"""Metrics for Prometheus: what a scrape says is what the service did."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from ruststream_kinesis import (
    KinesisBroker,
    KinesisPosition,
    KinesisPublish,
    RustStream,
    drop,
    retry,
)
from ruststream_kinesis.errors import ConfigurationError, RequestError
from ruststream_kinesis.metrics import app_metrics
from ruststream_kinesis.times import BUCKETS
from tests.support.world import Call, World, running, until

HORIZON = KinesisPosition.horizon()
ORDERS = {"stream": "orders", "group": ""}


def registered(app: RustStream, **options: Any) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(app_metrics(app, **options))
    return registry


@pytest.fixture
def world() -> World:
    world = World()
    world.stream("orders")
    world.stream("settled")
    return world


async def test_a_scrape_counts_what_became_of_the_records(world: World):
    world.put("orders", 0, 1, 2, 3, 4, b"no number")
    app = world.app()

    @app.subscriber("orders", start_at=HORIZON, publish="settled")
    async def handle(number: int) -> Any:
        if number == 1:
            return drop()
        if number == 2:
            return retry()
        if number == 3:
            raise ValueError("no")
        return number

    registry = registered(app)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"ruststream_kinesis_{name}", {**ORDERS, **labels})

    async with running(app):
        await until(lambda: value("decode_errors_total") == 1.0)
        await world.clock.advance(2.0)

        assert value("records_handled_total") == 4.0
        assert value("handler_errors_total") == 1.0
        assert value("outcomes_total", outcome="dropped") == 2.0
        # Record 3, too: `on_error` is "retry".
        assert value("outcomes_total", outcome="held") == 2.0
        assert value("replies_total") == 2.0
        assert value("records_read_total") == 6.0
        assert (value("reads_total") or 0) > 1
        stored = [write for write in world.store.done if write.kind == "checkpoint"]
        assert value("checkpoint_writes_total") == len(stored) > 0
        assert value("shards_held") == 1.0
        shard = {"shard_id": "shardId-000000000000"}
        assert value("shard_lag_seconds", **shard) == 0.0
        assert value("shard_held_records", **shard) == 2.0
        assert (value("shard_held_seconds", **shard) or 0) >= 2.0
        assert value("shard_polled_ago_seconds", **shard) == 0.0
        published = {"stream": "settled"}
        name = "ruststream_kinesis_published_records_total"
        assert registry.get_sample_value(name, published) == 2.0
        assert registry.get_sample_value("ruststream_kinesis_ready") == 1.0

    assert registry.get_sample_value("ruststream_kinesis_live") == 0.0


async def test_failures_of_reads_checkpoints_and_publishing_are_counted(world: World):
    refused: set[str] = set()

    async def once(call: Call) -> None:
        if call.operation in ("get_records", "put_record") and call.operation not in refused:
            refused.add(call.operation)
            raise RequestError("slow", code="ProvisionedThroughputExceededException", status=400)

    async def fail(write: Any) -> None:
        if write.kind == "checkpoint":
            world.store.before = None
            raise OSError("gone")

    world.hooks.append(once)
    world.store.before = fail
    world.put("orders", 1)
    app = world.app()

    @app.subscriber("orders", start_at=HORIZON, publish="settled")
    async def handle(number: int) -> int:
        return number

    registry = registered(app)
    async with running(app):
        await world.clock.advance(5.0)
        sample = registry.get_sample_value
        code = {"code": "ProvisionedThroughputExceededException"}
        assert sample("ruststream_kinesis_read_errors_total", {**ORDERS, **code}) == 1.0
        assert sample("ruststream_kinesis_publish_errors_total", {"stream": "settled"}) == 1.0
        assert sample("ruststream_kinesis_published_records_total", {"stream": "settled"}) == 1.0
        assert (sample("ruststream_kinesis_checkpoint_errors_total", ORDERS) or 0) >= 1.0
        assert (sample("ruststream_kinesis_checkpoint_writes_total", ORDERS) or 0) >= 1.0


async def test_batches_that_are_published_are_counted_as_records(world: World):
    app = world.app()
    publisher = app.publisher(KinesisPublish(batch=10))
    async with running(app):
        sent = [asyncio.ensure_future(publisher.publish(n, "settled")) for n in range(7)]
        await world.clock.advance(1.0)
        await asyncio.gather(*sent)
        (published,) = app.state().published
        assert (published.stream, published.counters.records) == ("settled", 7)


@pytest.mark.parametrize("plain", [False, True])
async def test_handlers_are_timed_where_it_is_asked_for(world: World, *, plain: bool):
    world.put("orders", *range(5))
    app = world.app()
    if plain:
        app.subscriber("orders", start_at=HORIZON)(_plain)
    else:
        app.subscriber("orders", start_at=HORIZON)(_waiting)
    registry = registered(app, handler_durations=True)

    async with running(app):
        await until(lambda: app.counters["orders"].handled == 5)

    name = "ruststream_kinesis_handler_duration_seconds"
    assert registry.get_sample_value(f"{name}_count", ORDERS) == 5.0
    assert registry.get_sample_value(f"{name}_bucket", {**ORDERS, "le": "+Inf"}) == 5.0
    assert registry.get_sample_value(f"{name}_bucket", {**ORDERS, "le": "60.0"}) == 5.0
    assert 0 < (registry.get_sample_value(f"{name}_sum", ORDERS) or 0) < 60
    assert list(BUCKETS) == sorted(BUCKETS)


def test_without_being_asked_for_nothing_is_timed():
    app = RustStream(KinesisBroker(), title="t", version="1")
    app_metrics(app)
    assert app.handler_times is None


def test_names_and_units_are_as_prometheus_has_them():
    app = RustStream(KinesisBroker(owner_id="me"), title="orders", version="2")
    text = generate_latest(registered(app)).decode()
    families = list(text_string_to_metric_families(text))

    assert 'ruststream_kinesis_app_info{instance_id="me",title="orders",version="2"} 1.0' in text
    assert all(each.name.startswith("ruststream_kinesis_") for each in families)
    assert all(each.documentation.endswith(".") for each in families)
    assert not [each.name for each in families if "_ms" in each.name]


def test_an_application_has_one_collector_which_a_registry_takes_once():
    app = RustStream(KinesisBroker(), title="t", version="1")
    registry = registered(app)
    assert app_metrics(app) is app_metrics(app)
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(app_metrics(app))


def test_without_the_library_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in sys.modules if name.startswith("prometheus_client")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "ruststream_kinesis.prometheus", raising=False)
    app = RustStream(KinesisBroker(), title="t", version="1")
    with pytest.raises(ConfigurationError, match=r"pip install 'ruststream-kinesis\[prometheus\]'"):
        app_metrics(app)


def _plain(number: int) -> None:
    pass


async def _waiting(number: int) -> None:
    await asyncio.sleep(0)
