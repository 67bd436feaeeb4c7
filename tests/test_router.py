"""Declarations: what `subscriber` refuses, and how groups of them are mounted."""

from __future__ import annotations

from typing import Any

import pytest

from ruststream_kinesis import (
    KinesisBroker,
    KinesisMessage,
    KinesisPosition,
    KinesisPublish,
    KinesisStream,
    Outcome,
    Router,
    RustStream,
    drop,
)
from ruststream_kinesis.errors import ConfigurationError

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"


async def handle(order: dict[str, int]) -> None: ...


def test_a_declaration_keeps_what_was_said_and_returns_the_function():
    router = Router()
    stream = KinesisStream("orders", poll_interval=3)
    position = KinesisPosition.horizon()

    returned = router.subscriber(
        stream, group="g", workers=8, start_at=position, publish="replies", on_error="stop"
    )(handle)

    (declared,) = router.subscribers
    assert returned is handle
    assert declared.stream is stream
    assert (declared.group, declared.workers, declared.start_at) == ("g", 8, position)
    assert declared.policies.reply == KinesisPublish(to="replies")
    assert declared.policies.on_error == "stop"
    assert declared.policies.on_decode_error == "drop"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("workers", 0),
        ("workers", -1),
        ("workers", True),
        ("workers", 1.5),
        ("workers", "2"),
        ("group", ""),
        ("group", "a/b"),
        ("group", "a:b"),
        ("group", 5),
        ("on_error", "ignore"),
        ("on_error", None),
        ("on_decode_error", "skip"),
        ("on_decode_error", 1),
        ("start_at", "horizon"),
        ("start_at", 0),
        ("publish", 5),
        ("publish", KinesisPublish()),
    ],
)
def test_a_value_that_means_nothing_is_refused_by_name(option: str, value: Any):
    router = Router()

    with pytest.raises(ConfigurationError, match=option):
        router.subscriber("orders", **{option: value})(handle)

    assert router.subscribers == ()


@pytest.mark.parametrize("publish", ["", "a b", "x" * 129])
def test_a_reply_stream_that_cannot_be_is_refused_with_its_value(publish: str):
    with pytest.raises(ConfigurationError) as caught:
        Router().subscriber("orders", publish=publish)

    assert repr(publish) in str(caught.value)


@pytest.mark.parametrize("option", ["on_error", "on_decode_error"])
def test_a_policy_that_would_have_to_be_awaited_is_refused(option: str):
    async def decide(error: BaseException, message: KinesisMessage[Any]) -> Outcome:
        return drop()

    policy: Any = {option: decide}
    with pytest.raises(ConfigurationError, match=f"{option}.*awaited"):
        Router().subscriber("orders", **policy)


@pytest.mark.parametrize(
    "policy",
    [
        {"partition_key": ""},
        {"partition_key": "é" * 257},
        {"partition_key": "\ud800"},
        {"partition_key": 5},
        {"deadline": -1},
        {"deadline": float("nan")},
        {"to": "a b"},
        {"to": 5},
    ],
    ids=str,
)
def test_a_publish_policy_that_means_nothing_is_refused_when_it_is_made(policy: dict[str, Any]):
    with pytest.raises(ConfigurationError):
        KinesisPublish(**policy)


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 0},
        {"workers": 0},
        {"batch_window": -1},
        {"group": ""},
        {"on_error": "never"},
        {"dead_letter": "a b"},
        {"publish": KinesisPublish()},
    ],
    ids=str,
)
def test_what_is_refused_names_the_subscriptions_stream(options: dict[str, Any]):
    with pytest.raises(ConfigurationError) as refused:
        Router().subscriber("orders", **options)

    assert refused.value.stream == "orders"
    assert "stream orders" in str(refused.value)


def test_an_unknown_subscription_is_answered_with_the_known_ones():
    app = RustStream(KinesisBroker(), title="t", version="0")
    app.subscriber("orders")(handle)
    app.subscriber("orders", group="audit")(handle)

    with pytest.raises(ConfigurationError) as refused:
        app.seeker("orders", "adit")

    assert "orders@adit" in str(refused.value)
    assert "orders, orders@audit" in str(refused.value)


def test_two_subscriptions_to_a_stream_need_groups_of_their_own():
    router = Router()
    router.subscriber("orders")(handle)

    with pytest.raises(ConfigurationError, match=r"second subscription.*'orders'.*group"):
        router.subscriber("orders")(handle)
    router.subscriber("orders", group="audit")(handle)
    with pytest.raises(ConfigurationError, match=r"'audit'"):
        router.subscriber(KinesisStream("orders", poll_interval=9), group="audit")(handle)

    assert [each.group for each in router.subscribers] == [None, "audit"]


def test_a_stream_named_by_arn_shares_its_leases_with_its_name():
    router = Router()
    router.subscriber("orders")(handle)

    with pytest.raises(ConfigurationError, match="group"):
        router.subscriber(ARN)(handle)


def test_an_application_mounts_routers_in_routers():
    inner, outer = Router(), Router()
    app = RustStream(KinesisBroker(), title="t", version="0")
    inner.subscriber("a")(handle)
    outer.subscriber("b")(handle)
    app.subscriber("c")(handle)

    outer.include(inner)
    app.include(outer)

    assert [each.stream.name for each in app.subscribers] == ["c", "b", "a"]


def test_mounting_a_router_twice_is_refused():
    router = Router()
    router.subscriber("orders")(handle)
    app = RustStream(KinesisBroker(), title="t", version="0")
    app.include(router)

    with pytest.raises(ConfigurationError, match="second subscription"):
        app.include(router)

    assert len(app.subscribers) == 1


def test_a_router_whose_stream_is_taken_is_mounted_not_even_in_part():
    router = Router()
    router.subscriber("fresh")(handle)
    router.subscriber("orders")(handle)
    app = RustStream(KinesisBroker(), title="t", version="0")
    app.subscriber("orders")(handle)

    with pytest.raises(ConfigurationError, match="'orders'"):
        app.include(router)

    assert [each.stream.name for each in app.subscribers] == ["orders"]


def test_the_subscribers_cannot_be_changed_from_outside():
    router = Router()
    router.subscriber("orders")(handle)

    assert isinstance(router.subscribers, tuple)
