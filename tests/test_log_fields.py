"""Where something happened, as attributes of the log record: in every message that names a place."""

from __future__ import annotations

import ast
import logging
import re
from pathlib import Path
from typing import Any

import pytest

import ruststream_kinesis
from ruststream_kinesis import KinesisPosition, KinesisStream, drop, retry
from ruststream_kinesis.errors import LeaseLost, RequestError
from ruststream_kinesis.wording import fields, fields_of
from tests.support.world import Call, World, running, until

PACKAGE = Path(ruststream_kinesis.__file__).parent

_LEVELS = {"debug", "info", "warning", "error", "critical", "exception", "log"}
# A message that names a place says it in one of these ways.
_NAMES_A_PLACE = re.compile(r"\b(?:shard|stream|record) %s|@|of %s")


def messages() -> list[tuple[str, ast.Call, str]]:
    """Every call of a logger in the package, with its text."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in _LEVELS
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == "logger"
            ):
                text = ast.unparse(node.args[1 if node.func.attr == "log" else 0])
                found.append((f"{path.relative_to(PACKAGE)}:{node.lineno}", node, text))
    return found


def test_every_message_that_names_a_stream_or_a_shard_has_them_as_fields():
    calls = messages()
    assert len(calls) > 50
    missing = [
        f"{where} {text}"
        for where, call, text in calls
        if _NAMES_A_PLACE.search(text) and "extra" not in {each.arg for each in call.keywords}
    ]
    assert missing == []


def test_what_is_not_concerned_is_no_attribute():
    assert fields("orders") == {"stream": "orders"}
    assert fields_of(LeaseLost("gone", stream="orders", shard_id="s-1")) == {
        "stream": "orders",
        "shard_id": "s-1",
    }
    assert fields_of(ValueError()) == {}


async def test_reader_settlement_coordinator_and_dead_letters_say_where(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    caplog.set_level(logging.DEBUG, "ruststream_kinesis")
    world = World()
    world.stream("orders")
    world.stream("dead")
    dropped, buried = world.put("orders", b"drop", b"bury")
    failing = True

    async def fail(call: Call) -> None:
        if call.operation == "get_records" and failing:
            raise RequestError("slow", code="InternalFailure", status=500)

    world.hooks.append(fail)
    app = world.app()

    @app.subscriber(
        KinesisStream("orders"),
        group="billing",
        start_at=KinesisPosition.horizon(),
        max_attempts=1,
        dead_letter="dead",
    )
    async def handle(word: str) -> Any:
        return drop() if word == "drop" else retry()

    async with running(app):
        failing = False
        await world.clock.advance(1.0)
        await until(lambda: app.counters["orders@billing"].dead_lettered == 1)

        async def gone(*_: Any, **__: Any) -> Any:
            raise RequestError("slow", code="InternalFailure", status=500)

        monkeypatch.setattr(world.store, "survey", gone)
        await world.clock.advance(4.0)

    def where(beginning: str) -> tuple[Any, ...]:
        found = [each for each in caplog.records if each.getMessage().startswith(beginning)]
        names = ("stream", "shard_id", "sequence_number")
        return tuple(getattr(found[0], name, None) for name in names)

    shard = "shardId-000000000000"
    # The stream's own name, without the group: it is what others call it, too.
    assert where("reading shard") == ("orders", shard, None)
    assert where(f"reading shard {shard} of stream orders failed") == ("orders", shard, None)
    assert where("dropped record") == ("orders", shard, dropped)
    assert where(f"record {buried}") == ("orders", shard, buried)
    assert where("a pass over the shards") == ("orders", None, None)
    assert where("released 1 shard(s)") == ("orders", None, None)
