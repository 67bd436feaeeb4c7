"""FastStream's in-memory test broker, an optional peer: `pip install 'faststream[nats]'`.

NATS is the broker with the smallest client; nothing is sent. Two ways of writing the handler: the
payload as a pydantic model, its default, and as the very struct that our handler takes.
"""

from __future__ import annotations

import asyncio
import importlib
from typing import Any

import msgspec
import pydantic

from benches.cpu import Sample
from benches.pages import Order
from benches.raw_loop import STREAM
from benches.testkit import WARMUP, orders, time_publishes


class OrderModel(pydantic.BaseModel):
    """The order, as a pydantic model."""

    id: int
    total: float
    customer: str
    currency: str
    paid: bool
    items: list[str]
    note: str


def run_pydantic(publishes: int) -> Sample:
    """One checked run with a pydantic model and the default serializer."""
    values = [OrderModel(**msgspec.to_builtins(one)) for one in orders(WARMUP + publishes)]
    return asyncio.run(_run(OrderModel, values))


def run_msgspec(publishes: int) -> Sample:
    """One checked run with the struct and its own serializer for msgspec."""
    serializer = importlib.import_module("fast_depends.msgspec").MsgSpecSerializer()
    return asyncio.run(_run(Order, orders(WARMUP + publishes), serializer=serializer))


async def _run(kind: type, values: list[Any], **options: Any) -> Sample:
    # By name: where it is not installed, this file still passes the type checker.
    nats = importlib.import_module("faststream.nats")
    broker = nats.NatsBroker(logger=None, **options)
    seen: list[int] = []

    async def handle(order: Any) -> None:
        seen.append(order.id)

    handle.__annotations__["order"] = kind
    broker.subscriber(STREAM)(handle)
    async with nats.TestNatsBroker(broker):
        return await time_publishes(lambda order: broker.publish(order, STREAM), values, seen)
