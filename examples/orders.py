"""A small service: orders come in on one stream, confirmations go out on another.

On the in-process log, without any server, `python -m examples.demo` runs it. On Kinesis, or on a local
server, it is `ruststream-kinesis run examples.orders:app`, where both streams have to be first:

    aws kinesis create-stream --stream-name orders --shard-count 1
    aws kinesis create-stream --stream-name confirmations --shard-count 1

(`--endpoint-url http://…` in each of the three commands for a local server; the demo creates them itself.)
"""

import msgspec

from ruststream_kinesis import KinesisBroker, KinesisPublish, Outcome, RustStream, drop


class Order(msgspec.Struct):
    """What a customer wants."""

    id: int
    customer: str
    quantity: int
    unit_cents: int


class Confirmation(msgspec.Struct):
    """What the customer gets to see."""

    order_id: int
    customer: str
    total_cents: int


def by_customer(confirmation: Confirmation) -> str:
    """One customer, one partition key: a customer's confirmations stay in order."""
    return confirmation.customer


# Where Kinesis is: AWS_REGION, credentials and endpoint as every AWS tool finds them.
broker = KinesisBroker()
app = RustStream(
    broker,
    title="orders",
    version="1.0.0",
    description="Confirms the orders that make sense.",
)


@app.subscriber(
    "orders",
    workers=8,
    publish=KinesisPublish(to="confirmations", partition_key=by_customer),
)
async def confirm(order: Order) -> Confirmation | Outcome:
    """Confirms one order."""
    if order.quantity < 1:
        # It will not get better by trying again: the checkpoint may pass it.
        return drop()
    return Confirmation(order.id, order.customer, order.quantity * order.unit_cents)
