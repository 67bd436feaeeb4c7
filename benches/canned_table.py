"""A canned DynamoDB endpoint in its own process: tables of leases, in memory, every request counted.

It is not canned quite like the one of Kinesis: conditions are looked at and updates are made, since a
lease store over a table that forgets does something else than one over a table. It knows the
expressions that the lease store writes, and refuses every other.

Tables need not be created, and are told apart by name, so each run has a fresh one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import msgspec

from benches.canned import RefusedError, serve, spawned

KEY = "lease_key"

_Item = dict[str, dict[str, Any]]

# `SET`, `REMOVE` and `ADD` with what follows each.
_CLAUSES = re.compile(r"(SET|REMOVE|ADD) (.*?)(?= (?:SET|REMOVE|ADD) |$)")
# Not at the comma inside of `if_not_exists(a, b)`.
_COMMA = re.compile(r", (?![^(]*\))")
_OTHERWISE = re.compile(r"if_not_exists\((\S+), (\S+)\)")
_FUNCTION = re.compile(r"attribute_(not_)?exists\((\S+)\)")
_COMPARED = re.compile(r"(\S+) (=|<) (\S+)")


class _Request(msgspec.Struct):
    """What the lease store sends."""

    TableName: str
    Key: _Item = {}
    Item: _Item = {}
    ConditionExpression: str = ""
    UpdateExpression: str = ""
    ExpressionAttributeNames: dict[str, str] = {}
    ExpressionAttributeValues: dict[str, dict[str, Any]] = {}


class CannedTables:
    """The answers, without the transport."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        """By operation, and by operation and kind of row: `UpdateItem member`."""
        self._tables: defaultdict[str, dict[str, _Item]] = defaultdict(dict)
        self._decode = msgspec.json.Decoder(_Request).decode
        self._encode = msgspec.json.Encoder().encode

    def answer(self, operation: str, body: bytes) -> list[bytes]:
        """The response body."""
        request = self._decode(body)
        self.calls[operation] += 1
        key = (request.Key or request.Item).get(KEY, {}).get("S")
        if key is not None:
            self.calls[f"{operation} {_kind(key)}"] += 1
        method = getattr(self, f"_on_{operation}", None)
        if method is None:
            raise RefusedError(f"the canned server does not know {operation}")
        return [self._encode(method(request, self._tables[request.TableName], key))]

    def _on_DescribeTable(self, *_: object) -> dict[str, object]:  # noqa: N802 (wire name)
        return {
            "Table": {
                "TableStatus": "ACTIVE",
                "KeySchema": [{"AttributeName": KEY, "KeyType": "HASH"}],
                "AttributeDefinitions": [{"AttributeName": KEY, "AttributeType": "S"}],
            }
        }

    def _on_Scan(self, _: _Request, table: dict[str, _Item], __: object) -> dict[str, object]:  # noqa: N802 (wire name)
        items = list(table.values())
        return {"Items": items, "Count": len(items), "ScannedCount": len(items)}

    def _on_GetItem(self, _: _Request, table: dict[str, _Item], key: str) -> dict[str, object]:  # noqa: N802 (wire name)
        return {"Item": table[key]} if key in table else {}

    def _on_PutItem(  # noqa: N802 (wire name)
        self, request: _Request, table: dict[str, _Item], key: str
    ) -> dict[str, object]:
        _demand(request, table.get(key))
        table[key] = request.Item
        return {}

    def _on_DeleteItem(  # noqa: N802 (wire name)
        self, request: _Request, table: dict[str, _Item], key: str
    ) -> dict[str, object]:
        _demand(request, table.get(key))
        table.pop(key, None)
        return {}

    def _on_UpdateItem(  # noqa: N802 (wire name)
        self, request: _Request, table: dict[str, _Item], key: str
    ) -> dict[str, object]:
        before = table.get(key)
        _demand(request, before)
        table[key] = after = _updated(request, {**request.Key, **(before or {})})
        return {"Attributes": after}


def _kind(key: str) -> str:
    kind = key.partition("/")[0]
    return kind if kind in ("member", "opening") else "lease"


def _demand(request: _Request, item: _Item | None) -> None:
    checks = request.ConditionExpression.split(" AND ")
    if not all(_holds(check, request, item or {}) for check in checks):
        raise RefusedError(
            "The conditional request failed",
            code="com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException",
            **({} if item is None else {"Item": item}),
        )


def _holds(check: str, request: _Request, item: _Item) -> bool:
    if check.startswith("("):
        return any(_holds(part, request, item) for part in check[1:-1].split(" OR "))
    names, values = request.ExpressionAttributeNames, request.ExpressionAttributeValues
    if (asked := _FUNCTION.fullmatch(check)) is not None:
        return (names[asked[2]] in item) is (asked[1] is None)
    if (asked := _COMPARED.fullmatch(check)) is None:
        raise RefusedError(f"the canned server does not know the condition {check!r}")
    stored, value = item.get(names[asked[1]]), values[asked[3]]
    if asked[2] == "=":
        return stored == value
    return stored is not None and float(stored["N"]) < float(value["N"])


def _updated(request: _Request, item: _Item) -> _Item:
    names, values = request.ExpressionAttributeNames, request.ExpressionAttributeValues
    after = dict(item)
    for clause, rest in _CLAUSES.findall(request.UpdateExpression):
        for part in _COMMA.split(rest):
            words = part.split(" ", 2)
            name = names[words[0]]
            if clause == "REMOVE":
                after.pop(name, None)
            elif clause == "ADD":
                number = int(item.get(name, {"N": "0"})["N"]) + int(values[words[1]]["N"])
                after[name] = {"N": str(number)}
            elif (other := _OTHERWISE.fullmatch(words[2])) is not None:
                after[name] = item.get(names[other[1]], values[other[2]])
            else:
                after[name] = values[words[2]]
    return after


@contextlib.contextmanager
def tables() -> Iterator[str]:
    """Start one in its own process; yields its URL."""
    with spawned("benches.canned_table", "--port", "0", "--until-stdin-ends") as url:
        yield url


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m benches.canned_table", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--until-stdin-ends", action="store_true", help=argparse.SUPPRESS)
    told = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(
            serve(CannedTables(), told.host, told.port, until_stdin_ends=told.until_stdin_ends)
        )


if __name__ == "__main__":
    main()
