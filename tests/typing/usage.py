"""What a user writes, as a type checker sees it: mypy and pyright, both strict.

Nothing here runs. A line that is wrong on purpose says so to both, and both report it if it is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, assert_type

import msgspec

from ruststream_kinesis import (
    AppState,
    Codec,
    DynamoLeaseStore,
    Headers,
    KinesisBroker,
    KinesisMessage,
    KinesisPosition,
    KinesisPublish,
    KinesisPublisher,
    KinesisStream,
    Outcome,
    Router,
    RustStream,
    Seeker,
    ack,
    drop,
    retry,
    retry_after,
)
from ruststream_kinesis.errors import KinesisError, PublishError
from ruststream_kinesis.testing import TestApp


class Order(msgspec.Struct):
    """What comes in."""

    id: int
    total: float


@dataclass
class Receipt:
    """What goes out."""

    order: int


class Lines:
    """A codec of the user's own."""

    content_type = "text/plain"

    def encode(self, value: Any) -> bytes:
        """One line."""
        return f"{value}\n".encode()

    def decoder(self, kind: Any) -> Callable[[bytes], Any]:
        """Whatever the type makes of a line."""
        return lambda payload: kind(payload.decode())


def by_order(receipt: Receipt) -> str:
    """A key for each order."""
    return str(receipt.order)


def unlucky(error: BaseException, message: KinesisMessage) -> Outcome:
    """What an error means."""
    return drop() if isinstance(error, KeyError) or message.attempt > 1 else retry()


broker = KinesisBroker(region="eu-central-1", lease_store=DynamoLeaseStore("leases"), max_shards=8)
app = RustStream(broker, title="orders", version="1.0.0", description="Settles orders.")
router = Router()
publisher = app.publisher(KinesisPublish(batch=100))
codec: Codec = Lines()


@app.subscriber(
    KinesisStream("orders", poll_interval=0.5, create_if_missing=2),
    workers=8,
    max_attempts=4,
    dead_letter="orders.dead",
    start_at=KinesisPosition.horizon(),
    publish=KinesisPublish(to="receipts", partition_key=by_order),
    on_error=unlucky,
)
async def settle(order: Order, message: KinesisMessage[Order]) -> Receipt | Outcome:
    """Asks for its message beside the payload."""
    assert_type(message.payload, Order)
    assert_type(message.attempt, int)
    if message.partition_key == "":
        await message.nack(requeue=False)
    return Receipt(order.id) if order.total else retry_after(30)


@router.subscriber("orders", group="audit", batch=100, codec=codec)
def audit(orders: list[Order], messages: list[KinesisMessage[Order]]) -> list[Outcome]:
    """Takes lists, in a thread."""
    return [ack() if order.id else drop() for order, _ in zip(orders, messages, strict=True)]


@router.subscriber("orders", group="rewinding")
async def rewind(
    message: KinesisMessage, headers: Headers, out: KinesisPublisher, seeker: Seeker
) -> None:
    """Asks for everything else; a message without a type has a payload of any."""
    assert_type(message.payload, Any)
    assert_type(headers.get("tenant"), str | None)
    result = await out.publish(message.payload, "copies", partition_key="k", headers={"a": "b"})
    assert_type(result.sequence_number, str)
    await seeker.seek(KinesisPosition.sequence(message.shard_id, message.sequence_number))


@app.on_startup
async def announce() -> None:
    """A hook."""
    try:
        await asyncio.wait_for(publisher.publish_nowait(Order(1, 2.0), "orders"), 5)
    except PublishError as error:
        assert_type(error.stream, str | None)
        raise KinesisError(error.message) from error


async def what_a_decorator_leaves(order: Order, message: KinesisMessage[Order]) -> None:
    """A decorated handler is the function that was written."""
    assert_type(await settle(order, message), Receipt | Outcome)
    assert_type(audit([order], [message]), list[Outcome])
    await settle(1, message)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def what_runs_it() -> None:
    """The application from outside."""
    app.include(router)
    assert_type(app.state(), AppState)
    assert_type(app.asyncapi(), dict[str, Any])
    await app.seeker("orders", "rewinding").seek(KinesisPosition.latest())
    await app.run(signals=False)


async def what_tests_it() -> None:
    """The in-process log."""
    async with TestApp(app) as log:
        await log.publish(Order(1, 2.0), "orders", partition_key="ada")


def what_is_refused() -> None:
    """Mistakes that a checker finds."""
    KinesisBroker(transport="fast")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.subscriber("a", deferred="x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.subscriber("a", workers="8")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.subscriber("a", 8)  # type: ignore[call-arg, arg-type]  # pyright: ignore[reportCallIssue]
    KinesisPublish("to")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    RustStream(broker)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
