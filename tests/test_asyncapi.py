"""The AsyncAPI document: what is declared, and nothing else."""

from __future__ import annotations

import enum
import functools
import os
import subprocess
import sys
from typing import Annotated

import msgspec
import pytest

from examples.orders import app as orders
from ruststream_kinesis import (
    KinesisBroker,
    KinesisPosition,
    KinesisPublish,
    KinesisStream,
    Outcome,
    Router,
)
from ruststream_kinesis.asyncapi import to_json, to_yaml
from tests.support.documents import (
    described,
    messages,
    payload,
    reading,
    resolve,
    service,
)
from tests.support.servers import ROOT

KEY = "x-ruststream-kinesis"


class Size(enum.Enum):
    SMALL = "s"
    LARGE = "l"


class Order(msgspec.Struct):
    """What a customer wants."""

    id: int
    size: Size = Size.SMALL
    discriminator: str = ""
    pair: tuple[int, str] = (1, "a")


class Paid(msgspec.Struct, tag=True):
    order: Order


class Cancelled(msgspec.Struct, tag=True):
    id: int
    why: str | None = None


class TestExample:
    def test_the_example_is_described(self):
        document = described(orders)

        assert document["asyncapi"] == "3.0.0"
        assert document["info"] == {
            "title": "orders",
            "version": "1.0.0",
            "description": "Confirms the orders that make sense.",
        }
        assert list(document["channels"]) == ["orders", "confirmations"]
        assert {name: each["action"] for name, each in document["operations"].items()} == {
            "receive_orders": "receive",
            "reply_orders": "send",
        }
        # `Confirmation | Outcome`: an outcome is nobody's payload.
        assert messages(document, "reply_orders") == ["Confirmation"]
        assert "Outcome" not in document["components"]["schemas"]
        assert payload(document, "Order")["required"] == [
            "id",
            "customer",
            "quantity",
            "unit_cents",
        ]
        assert document["operations"]["reply_orders"]["bindings"][KEY] == {
            "partitionKeyFunction": "by_customer"
        }

    def test_it_connects_to_nothing_and_loads_no_client(self):
        code = (
            "import sys\n"
            "from examples.orders import app\n"
            "assert 'ruststream_kinesis.asyncapi' not in sys.modules\n"
            "app.asyncapi()\n"
            "slow = {'aiobotocore', 'botocore', 'aiohttp', 'yaml', 'pydantic', 'typer'}\n"
            "assert not slow & set(sys.modules), slow & set(sys.modules)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, cwd=ROOT, check=False
        )

        assert done.returncode == 0, done.stderr.decode()

    def test_the_same_declarations_make_the_same_bytes_in_every_process(self, tmp_path):
        (tmp_path / "sets.py").write_text(
            "import functools, msgspec, pydantic\n"
            "from typing import Literal\n"
            "from ruststream_kinesis import *\n"
            "from ruststream_kinesis.asyncapi import to_json\n"
            "names = [f'name{n}' for n in range(20)]\n"
            "class M(pydantic.BaseModel):\n    tags: set[str] = set(names)\n"
            "class S(msgspec.Struct):\n"
            "    model: M\n"
            "    tags: frozenset[str] = frozenset(names)\n"
            "    kind: Literal['z', 'a', 'k'] = 'a'\n"
            "app = RustStream(KinesisBroker(), title='t', version='1')\n"
            "@app.subscriber('s', on_error=functools.partial(lambda e, m: drop()))\n"
            "def handle(value: S) -> None: ...\n"
            "print(to_json(app.asyncapi()))\n"
        )
        written = {
            subprocess.run(
                [sys.executable, "sets.py"],
                capture_output=True,
                cwd=tmp_path,
                check=True,
                env=os.environ | {"PYTHONHASHSEED": seed},
            ).stdout
            for seed in ("1", "2")
        }

        assert len(written) == 1
        assert b"name19" in written.pop()

    def test_what_is_made_of_a_document_is_nobody_elses(self):
        document = orders.asyncapi()
        document["components"]["schemas"]["KinesisHeaders"]["properties"].clear()
        document["channels"].clear()

        assert described(orders) != document

    def test_an_application_without_subscribers_has_a_document(self):
        assert described(service())["channels"] == {}


class TestServer:
    @pytest.mark.parametrize(
        ("broker", "server"),
        [
            (KinesisBroker(region="eu-west-1"), {"host": "kinesis.eu-west-1.amazonaws.com"}),
            (KinesisBroker(region="cn-north-1"), {"host": "kinesis.cn-north-1.amazonaws.com.cn"}),
            (KinesisBroker(endpoint_url="http://localhost:4567"), {"host": "localhost:4567"}),
            (KinesisBroker(endpoint_url="http://[::1]:4567/"), {"host": "[::1]:4567"}),
            (
                KinesisBroker(endpoint_url="https://u%40x:se@cret@host:1/a/b/?token=t#f"),
                {"host": "host:1", "pathname": "/a/b"},
            ),
        ],
    )
    def test_it_is_a_host_and_never_credentials(self, broker, server):
        found = described(service(broker))["servers"]["kinesis"]

        assert {name: found.get(name) for name in ("host", "pathname")} == {
            "pathname": None,
            **server,
        }
        assert found["protocol"] == "kinesis"
        assert "secret" not in str(found)

    def test_a_region_that_only_the_environment_knows_is_a_variable(self, monkeypatch):
        monkeypatch.setenv("AWS_REGION", "eu-west-1")
        found = described(service())["servers"]["kinesis"]

        assert found["host"] == "kinesis.{region}.amazonaws.com"
        assert list(found["variables"]) == ["region"]


class TestSubscriptions:
    def test_what_is_declared_is_in_the_extension(self):
        app = service()

        @app.subscriber(
            KinesisStream("orders", poll_interval=0.25, read_interval=1, create_if_missing=3),
            group="audit",
            workers=4,
            batch=10,
            batch_window=0.5,
            start_at=KinesisPosition.timestamp(3),
            max_attempts=5,
            dead_letter="orders.dead",
            deferred="settle",
            on_error="stop",
            publish=KinesisPublish(to="done", partition_key="k", batch=7, linger=0.1),
        )
        async def settle(values: list[Order]) -> Paid | list[Outcome]:
            raise NotImplementedError

        document = described(app)
        assert document["channels"]["orders"]["bindings"][KEY] == {
            "stream": "orders",
            "pollIntervalMs": 250,
            "shardCount": 3,
        }
        assert document["operations"]["receive_orders_audit"]["bindings"][KEY] == {
            "group": "audit",
            "workers": 4,
            "batch": 10,
            "batchWindowMs": 500,
            "pollIntervalMs": 250,
            "readIntervalMs": 1000,
            "startAt": "1970-01-01T00:00:03Z",
            "maxAttempts": 5,
            "deadLetter": "orders.dead",
            "deferred": "settle",
            "onError": "stop",
            "onDecodeError": "drop",
        }
        # A batch is many messages, and has one reply; its lists are outcomes.
        assert messages(document, "receive_orders_audit") == ["Order"]
        assert messages(document, "reply_orders_audit") == ["Paid"]
        assert document["operations"]["reply_orders_audit"]["bindings"][KEY] == {
            "partitionKey": "k",
            "batch": 7,
            "lingerMs": 100,
        }
        assert document["components"]["messages"]["Paid"]["bindings"][KEY] == {"partitionKey": "k"}

    def test_groups_share_a_channel_and_have_operations_of_their_own(self):
        app, router = service(), Router()
        for group, pause in ((None, 2), ("audit", 1), ("a b", 3), ("a?b", 2)):
            at = KinesisStream("orders", poll_interval=pause)
            router.subscriber(at, group=group)(_nothing)
        # An operation of this name is there already.
        router.subscriber("orders_audit")(_nothing)
        app.include(router)
        document = described(app)

        assert list(document["operations"]) == [
            "receive_orders",
            "receive_orders_audit",
            "receive_orders_a_b",
            "receive_orders_a_b_2",
            "receive_orders_audit_2",
        ]
        assert list(document["channels"]) == ["orders", "orders_audit"]
        assert document["channels"]["orders"]["bindings"][KEY]["pollIntervalMs"] == 1000

    def test_one_more_subscription_renames_none_of_those_before(self):
        app = service()
        app.subscriber("orders", group="audit")(_nothing)
        before = list(described(app)["operations"])
        app.subscriber("orders_audit")(_nothing)
        app.subscriber("orders")(_nothing)

        assert list(described(app)["operations"])[: len(before)] == before

    def test_two_streams_of_one_name_have_two_channels(self):
        app = service()
        arn = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
        app.subscriber("orders")(_nothing)
        app.subscriber(arn, group="other")(_nothing)
        channels = described(app)["channels"]

        assert {name: each["address"] for name, each in channels.items()} == {
            "orders": "orders",
            "orders.eu-west-1.123456789012": arn,
        }

    def test_the_docstring_is_summary_and_description(self):
        app = service()

        def settle(order: Order) -> None:
            raise NotImplementedError

        settle.__doc__ = """Settles an order,
            or does not.

            More of it.
            """
        app.subscriber("orders", max_attempts=3)(settle)

        operation = described(app)["operations"]["receive_orders"]
        assert operation["title"] == "settle"
        assert operation["summary"] == "Settles an order, or does not."
        assert operation["description"].startswith("More of it.\n\nA record that is to be retried")
        assert "after 3 deliveries it is dropped" in operation["description"]

    def test_a_handler_without_docstring_or_name_of_its_own_has_no_summary(self):
        class Callee:
            def __call__(self, order: Order) -> None:
                raise NotImplementedError

        app = service()
        app.subscriber("a")(Callee())
        app.subscriber("b")(functools.partial(_nothing))
        operations = described(app)["operations"].values()

        assert ["summary" in each for each in operations] == [False, False]
        assert "0x" not in str(operations)

    def test_dead_letters_have_payload_and_headers_of_their_own(self):
        document = reading(Order, max_attempts=2, dead_letter="orders.dead")

        assert document["operations"]["dead_letter_orders"]["action"] == "send"
        assert messages(document, "dead_letter_orders") == [
            "Order_dead_letter",
            "orders_undecodable",
        ]
        letter = document["components"]["messages"]["Order_dead_letter"]
        assert letter["payload"] == {"$ref": "#/components/schemas/Order"}
        headers = resolve(document, letter["headers"]["$ref"])["properties"]
        assert {"x-ruststream-origin-stream", "x-ruststream-error"} < set(headers)

    @pytest.mark.parametrize(
        ("kind", "policy"), [(bytes, "drop"), (Order, "stop"), (Order, lambda e, m: None)]
    )
    def test_what_always_decodes_or_is_decided_otherwise_is_no_dead_letter(self, kind, policy):
        document = reading(kind, dead_letter="orders.dead", on_decode_error=policy)

        assert len(messages(document, "dead_letter_orders")) == 1


class TestReplies:
    @pytest.mark.parametrize(
        ("returns", "kinds"),
        [
            (Paid | Outcome | None, ["Paid"]),
            (Annotated[Paid | Cancelled, "either"], ["Paid", "Cancelled"]),
            (Paid | str, ["Paid", "orders_reply"]),
            (dict[str, int] | bytes, ["orders_reply", "orders_reply_2"]),
        ],
    )
    def test_each_member_of_a_union_is_a_message(self, returns, kinds):
        assert messages(reading(Order, returns=returns, publish="done"), "reply_orders") == kinds

    def test_text_and_bytes_travel_as_they_are(self):
        document = reading(Order, returns=bytes | str | int, publish="done")

        found = [document["components"]["messages"][n] for n in messages(document, "reply_orders")]
        assert [(each["contentType"], each["payload"]) for each in found] == [
            ("application/octet-stream", {"type": "string", "format": "binary"}),
            ("text/plain", {"type": "string"}),
            ("application/json", {"type": "integer"}),
        ]

    @pytest.mark.parametrize("returns", [None, Outcome, Outcome | None])
    def test_a_handler_that_says_it_returns_no_value_sends_none(self, returns):
        document = reading(Order, returns=returns, publish="done")

        assert list(document["operations"]) == ["receive_orders"]
        assert list(document["channels"]) == ["orders"]

    def test_a_handler_that_does_not_say_sends_anything(self):
        app = service()

        @app.subscriber("orders", publish="done")
        def settle(order: Order):
            raise NotImplementedError

        reply = described(app)["components"]["messages"]["orders_reply"]
        assert reply["payload"] == {}
        assert reply["description"] == "Its type is not declared."

    def test_a_policy_for_copies_alone_is_no_reply(self):
        policy = KinesisPublish(batch=10)

        assert list(reading(Order, publish=policy)["operations"]) == ["receive_orders"]


def _nothing(order: Order) -> None:
    raise NotImplementedError


class TestWriting:
    def test_json_and_yaml_say_the_same(self):
        yaml = pytest.importorskip("yaml")
        app = service()

        def settle(order: Order) -> None:
            raise NotImplementedError

        settle.__doc__ = "Sums up:\n\n* yes, no: 1.0\n  'ö' \"x\" \\ #\n\n- ~"
        app.subscriber("orders", max_attempts=2)(settle)
        document = described(app)
        assert msgspec.json.decode(to_json(document)) == document
        assert yaml.safe_load(to_yaml(document)) == document
        # Prose stays prose, and nothing has to be looked up elsewhere in the file.
        assert "description: |-\n" in to_yaml(document)
        assert "&id" not in to_yaml(document)
