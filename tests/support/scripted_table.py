"""A DynamoDB table that fails on command, on a real socket."""

from __future__ import annotations

from typing import Any

from tests.support.faults import FaultServer
from tests.support.replies import Answer, Call, ok

__all__ = ["ROW", "SCHEMA", "ScriptedTable", "described"]

SCHEMA = {
    "KeySchema": [{"AttributeName": "lease_key", "KeyType": "HASH"}],
    "AttributeDefinitions": [{"AttributeName": "lease_key", "AttributeType": "S"}],
}
ROW = {"lease_key": {"S": "k"}, "lease_counter": {"N": "1"}}


def described(status: str = "ACTIVE", **more: Any) -> Answer:
    """Answer DescribeTable."""
    return ok(Table={"TableStatus": status, **SCHEMA, **more})


class ScriptedTable(FaultServer):
    """A table that is there, has no rows, and accepts every write."""

    async def default(self, call: Call) -> Answer:
        """Behave like a healthy service."""
        match call.target:
            case "DescribeTable":
                return described()
            case "UpdateItem":
                return ok(Attributes=ROW)
            case "Scan":
                return ok(Items=[])
            case _:
                return ok()
