"""`DynamoTable`: the primitives of `Table` over DynamoDB (`table_client.py`).

botocore retries nothing: a call that fails for a passing reason is made again here, with growing
pauses, while the call's time lasts. That time is shorter than what a caller of the store has, so that
the error it gets is ours and says what happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from ruststream_kinesis.backoff import Backoff
from ruststream_kinesis.clients import ClientSettings, LoopClients, Way
from ruststream_kinesis.clock import Clock
from ruststream_kinesis.errors import (
    LeaseTableDenied,
    LeaseTableError,
    LeaseTableMismatch,
    LeaseTableNotFound,
    LeaseTableUnreachable,
)
from ruststream_kinesis.leases.rows import KEY
from ruststream_kinesis.leases.table import Change, Check, Foreign, Outcome, Row, Value
from ruststream_kinesis.leases.table_client import TableClient
from ruststream_kinesis.leases.table_errors import how_to_create, translated, unreadable
from ruststream_kinesis.wording import asked_at

__all__ = ["DynamoTable"]

logger = logging.getLogger("ruststream_kinesis")

# Seconds of one request until its whole answer is there: the service takes milliseconds.
ATTEMPT_DEADLINE = 1.5
# Seconds until a call gives up; a caller of the store has four.
CALL_DEADLINE = 3.5
# A new table is active within ten seconds, as a rule.
_CREATION_DEADLINE = 120.0
# Hundreds of shards start and renew at once; botocore pools ten connections.
_POOL_SIZE = 32
# What a table is in while it can be used.
_USABLE = ("ACTIVE", "UPDATING")
# The key of a table that people are likely to have, and to take for one of ours.
_KCL_KEY = "leaseKey"
# Members that the service always sends. botocore reads a body that is no JSON (a proxy's page with
# status 200) as an empty answer, where a call goes its way.
_EXPECTED = {"describe_table": "Table", "scan": "Items", "update_item": "Attributes"}


class DynamoTable:
    """A DynamoDB table with the one key of a lease table.

    Args:
        name: Its name or ARN.
        settings: How to reach it.
        clock: Pauses between attempts.
        create: Create it where it does not exist.
        transport: How the calls for rows go.
        attempt: Seconds of one request.
        deadline: Seconds of a call, however many requests it takes.
    """

    def __init__(
        self,
        name: str,
        settings: ClientSettings,
        clock: Clock,
        *,
        create: bool = False,
        transport: Way = "thin",
        attempt: float = ATTEMPT_DEADLINE,
        deadline: float = CALL_DEADLINE,
    ) -> None:
        self._name = name
        self._clock = clock
        self._create = create
        self._transport = transport
        self._attempt = attempt
        self._deadline = deadline
        self._looked_at = False
        self._told = False
        self._clients: LoopClients[TableClient] = LoopClients(
            "dynamodb",
            settings,
            advice="DynamoLeaseStore",
            defaults={
                "connect_timeout": attempt,
                "read_timeout": attempt,
                "max_pool_connections": _POOL_SIZE,
                "tcp_keepalive": True,
                "parameter_validation": False,
            },
            made=self._made,
        )

    @property
    def name(self) -> str:
        """Its name or ARN."""
        return self._name

    async def open(self) -> None:
        """Makes this loop's client and looks at the table, or creates it.

        Raises:
            LeaseTableError: It cannot be used.
            ConfigurationError: No region, or no credentials, anywhere in the configuration.
        """
        await self._client()

    async def close(self, *, everywhere: bool = True) -> None:
        """Closes the client of this loop, or of every one; a later call makes new ones."""
        await self._clients.close(everywhere=everywhere)

    # -- rows --------------------------------------------------------------------------------------

    async def get(self, key: str) -> Row | None:
        """GetItem."""
        answer = await self._call("get_item", Key=_key(key), ConsistentRead=True)
        return _row(answer["Item"]) if answer.get("Item") else None

    async def update(self, key: str, change: Change, condition: Sequence[Check]) -> Outcome:
        """UpdateItem."""
        words = _Words()
        request = {
            "Key": _key(key),
            "UpdateExpression": words.change(change),
            "ConditionExpression": words.condition(condition),
            "ReturnValues": "ALL_NEW",
        }
        return await self._write("update_item", key, {**request, **words.parameters})

    async def put(self, key: str, row: Row) -> Outcome:
        """PutItem, for a key that has no row."""
        words = _Words()
        item = {**_key(key), **{name: _wire(value) for name, value in row.items()}}
        request = {"Item": item, "ConditionExpression": words.condition([Check("no row")])}
        outcome = await self._write("put_item", key, {**request, **words.parameters})
        return Outcome(True, row) if outcome.applied else outcome

    async def delete(self, key: str, condition: Sequence[Check]) -> Outcome:
        """DeleteItem."""
        words = _Words()
        request = {"Key": _key(key), "ConditionExpression": words.condition(condition)}
        return await self._write("delete_item", key, {**request, **words.parameters})

    async def pages(self) -> AsyncGenerator[Sequence[tuple[str, Row]], None]:
        """Scan."""
        request: dict[str, Any] = {"ConsistentRead": True}
        while True:
            answer = await self._call("scan", **request)
            yield [(item[KEY]["S"], _row(item)) for item in answer["Items"]]
            if not answer.get("LastEvaluatedKey"):
                return
            request["ExclusiveStartKey"] = answer["LastEvaluatedKey"]

    async def _write(self, operation: str, key: str, request: Mapping[str, Any]) -> Outcome:
        from botocore.exceptions import ClientError  # noqa: PLC0415 - see the header of clients.py

        try:
            answer = await self._call(
                operation, **request, ReturnValuesOnConditionCheckFailure="ALL_OLD"
            )
        except ClientError as error:  # a failed condition; everything else is an error of ours
            there: Any = error.response.get("Item")
            # Where there was no row nothing comes back, and servers that do not know the parameter
            # say nothing either.
            return Outcome(False, _row(there) if there else await self.get(key))
        if operation != "update_item":
            return Outcome(True, None)
        return Outcome(True, _row(answer["Attributes"]))

    async def _client(self) -> TableClient:
        async with translated(self._name, "connect", self._attempt):
            return await self._clients.get()

    async def _call(self, operation: str, **request: Any) -> Any:
        return await self._persist(self._client, operation, request)

    async def _persist(
        self,
        client: Callable[[], Awaitable[TableClient]],
        operation: str,
        request: Mapping[str, Any],
    ) -> Any:
        """One call, made again while it fails for a passing reason and has time left."""
        calls = await client()
        backoff, began, uncertain = Backoff(first=0.05, cap=1.0), self._clock.monotonic(), False
        expected, limit = _EXPECTED.get(operation), self._attempt
        while True:
            try:
                async with translated(self._name, operation, limit), asyncio.timeout(limit):
                    answer = await calls.call(operation, self._name, request)
                    if expected is not None and expected not in answer:
                        raise unreadable(self._name, operation, expected)
                    return answer
            except LeaseTableUnreachable as error:
                # Once an answer was lost, a later refusal says nothing of the first attempt.
                uncertain = error.uncertain = uncertain or error.uncertain
                pause = backoff.next()
                left = began + self._deadline - self._clock.monotonic() - pause
                if left <= 0:
                    raise
                limit = min(self._attempt, left)
            await self._clock.sleep(pause)
            # Another one where this was closed meanwhile.
            calls = await client()

    # -- the table itself --------------------------------------------------------------------------

    async def _made(self, client: Any, _: contextlib.AsyncExitStack) -> TableClient:
        """What a new client is used through, once the table was looked at."""
        if self._transport == "thin":
            calls = await TableClient.over(client, self._clock)
        else:
            calls = TableClient(client)
        if (unfit := calls.unfit) is not None and not self._told:
            self._told = True
            level = logging.INFO if unfit.expected else logging.WARNING
            logger.log(level, "calls to DynamoDB take aiobotocore's own, slower way: %s", unfit)
        if not self._looked_at:
            await self._look_at(calls)
        return calls

    async def _look_at(self, calls: TableClient) -> None:
        """Refuses a table that is none of leases, before the first row is read or written."""

        async def made() -> TableClient:
            return calls

        backoff, began = Backoff(first=0.1, cap=2.0), self._clock.monotonic()
        while not await self._usable(made):
            pause = backoff.next()
            if self._clock.monotonic() - began + pause >= _CREATION_DEADLINE:
                raise LeaseTableUnreachable(
                    f"lease table {self._name!r} is not active after {_CREATION_DEADLINE:g} s",
                    table=self._name,
                    code="TableNotActive",
                )
            await self._clock.sleep(pause)
        self._looked_at = True

    async def _usable(self, client: Callable[[], Awaitable[TableClient]]) -> bool:
        """Whether the table is there; asks for it to be made where that is wanted."""
        try:
            answer = await self._persist(client, "describe_table", {})
        except LeaseTableNotFound as error:
            if not self._create:
                where = asked_at((await client()).meta)
                raise LeaseTableNotFound(
                    f"{error.message}. It was looked for at {where}",
                    table=error.table,
                    code=error.code,
                    status=error.status,
                ) from error
            await self._make(client)
            return False
        except LeaseTableDenied as error:
            if self._create:
                raise
            # The right to look at the table is one that a service can do without.
            logger.warning("%s; it is used as it is", error)
            return True
        self._check(answer["Table"])
        return answer["Table"].get("TableStatus") in _USABLE

    async def _make(self, client: Callable[[], Awaitable[TableClient]]) -> None:
        request = {
            "AttributeDefinitions": [{"AttributeName": KEY, "AttributeType": "S"}],
            "KeySchema": [{"AttributeName": KEY, "KeyType": "HASH"}],
            "BillingMode": "PAY_PER_REQUEST",
        }
        try:
            await self._persist(client, "create_table", request)
        except LeaseTableError as error:
            # Another instance was first: the table is what was asked for.
            if error.code != "ResourceInUseException":
                raise
            return
        logger.info("lease table %r is created", self._name)

    def _check(self, table: Mapping[str, Any]) -> None:
        keys = [(key["AttributeName"], key["KeyType"]) for key in table.get("KeySchema", ())]
        types = {
            each["AttributeName"]: each["AttributeType"]
            for each in table.get("AttributeDefinitions", ())
        }
        wrong = list(_differences(keys, types))
        if wrong:
            raise LeaseTableMismatch(
                f"table {self._name!r} is no lease table: {', and '.join(wrong)}. Use another table "
                f"name: {how_to_create('NAME')}",
                table=self._name,
                code="KeySchema",
            )


def _differences(keys: Sequence[tuple[str, str]], types: Mapping[str, str]) -> Iterator[str]:
    """What is wrong with a table's key, for whoever named the table."""
    for name, kind in keys:
        if kind != "HASH":
            yield f"it has a second key, {name!r} ({kind})"
        elif name != KEY:
            theirs = " (a table of the Kinesis Client Library)" if name == _KCL_KEY else ""
            yield f"its key is {name!r}{theirs} and not {KEY!r}"
        elif types.get(name) != "S":
            yield f"its key {name!r} is of type {types.get(name)} and not S, a string"
    if not keys:
        yield "it has no key"


class _Words:
    """Expressions of one request, with the names and values that stand behind them."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._values: dict[str, Any] = {}

    @property
    def parameters(self) -> dict[str, Any]:
        """What the request has to say of the words used so far; the service refuses empty ones."""
        aliases = {alias: name for name, alias in self._names.items()}
        given = {"ExpressionAttributeNames": aliases, "ExpressionAttributeValues": self._values}
        return {name: words for name, words in given.items() if words}

    def condition(self, checks: Sequence[Check]) -> str:
        """All of them."""
        return " AND ".join(map(self._check, checks))

    def change(self, change: Change) -> str:
        """An update."""
        sets = [f"{self._name(name)} = {self._value(value)}" for name, value in change.set.items()]
        for target, (source, otherwise) in change.copy.items():
            copied = f"if_not_exists({self._name(source)}, {self._value(otherwise)})"
            sets.append(f"{self._name(target)} = {copied}")
        parts = [f"ADD {self._name(change.count)} {self._value(1)}"]
        if sets:
            parts.append("SET " + ", ".join(sets))
        if change.remove:
            parts.append("REMOVE " + ", ".join(map(self._name, change.remove)))
        return " ".join(parts)

    def _check(self, check: Check) -> str:
        match check.kind:
            case "no row":
                return f"attribute_not_exists({self._name(KEY)})"
            case "row":
                return f"attribute_exists({self._name(KEY)})"
            case "absent":
                return f"attribute_not_exists({self._name(check.name)})"
            case "is":
                return f"{self._name(check.name)} = {self._value(check.value)}"
        name = self._name(check.name)
        than = "<" if check.kind == "absent or below" else "="
        return f"(attribute_not_exists({name}) OR {name} {than} {self._value(check.value)})"

    def _name(self, name: str) -> str:
        # Aliased all: DynamoDB reserves hundreds of words, and more with time.
        return self._names.setdefault(name, f"#n{len(self._names)}")

    def _value(self, value: Value) -> str:
        alias = f":v{len(self._values)}"
        self._values[alias] = _wire(value)
        return alias


def _key(key: str) -> dict[str, Any]:
    return {KEY: {"S": key}}


def _row(item: Mapping[str, Any]) -> dict[str, Value]:
    return {name: _read(value) for name, value in item.items() if name != KEY}


def _wire(value: Value) -> dict[str, Any]:
    match value:
        case None:
            return {"NULL": True}
        case bool():
            return {"BOOL": value}
        case str():
            return {"S": value}
        case int() | float():
            return {"N": repr(value)}
        case tuple():
            return {"L": [{"S": each} for each in value]}
        case Foreign():
            raise AssertionError("a value of a type that is not ours is never written")


def _read(value: Mapping[str, Any]) -> Value:
    ((kind, content),) = value.items()
    match kind:
        case "S" | "BOOL":
            return content  # type: ignore[no-any-return]  # a text, a truth
        case "NULL":
            return None
        case "N":
            return _number(content)
        case "L" if all("S" in each for each in content):
            return tuple(each["S"] for each in content)
    return Foreign(f"{kind} {content!r}")


def _number(text: str) -> Value:
    try:
        return int(text)
    except ValueError:
        return float(text)
