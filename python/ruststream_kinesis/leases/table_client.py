"""`TableClient`: one loop's way to DynamoDB, the short one for rows, the client's own for the table.

A busy shard writes its row five times a second, and every held shard once in three: by way of
aiobotocore's client that would cost more CPU than the records themselves. Requests and answers have
the shape of the client's, so whoever calls cannot tell which way a call took.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ruststream_kinesis.aws_client import ERROR_STATUS
from ruststream_kinesis.aws_internals import DYNAMODB, Unfit, look_inside
from ruststream_kinesis.clock import Clock
from ruststream_kinesis.plane import Answer, Plane

__all__ = ["TableClient"]

# By the client's name of each. No member of these is binary, where JSON and the client differ.
_SHORT = {
    "get_item": "GetItem",
    "put_item": "PutItem",
    "update_item": "UpdateItem",
    "delete_item": "DeleteItem",
    "scan": "Scan",
}
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class TableClient:
    """The calls of one client.

    Args:
        client: aiobotocore's.
        plane: The short way, where this client allows it.
        unfit: Why it does not.
    """

    def __init__(self, client: Any, plane: Plane | None = None, unfit: Unfit | None = None) -> None:
        self._client = client
        self._plane = plane
        self.unfit = unfit

    @property
    def meta(self) -> Any:
        """The client's own: where it asks."""
        return self._client.meta

    @classmethod
    async def over(cls, client: Any, clock: Clock) -> TableClient:
        """The best way that a client allows.

        Args:
            client: aiobotocore's.
            clock: For signatures.
        """
        try:
            insides = await look_inside(client, tuple(_SHORT.values()), DYNAMODB)
        except Unfit as unfit:
            return cls(client, unfit=unfit)
        return cls(client, Plane(insides, insides.credentials, clock))

    async def call(self, method: str, table: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """One call, and its good answer.

        Args:
            method: As the client names it.
            table: Name or ARN.
            request: Everything else.

        Raises:
            ClientError: A refusal, as botocore tells it.
            ValueError: The answer is nothing that the service says.
        """
        operation = _SHORT.get(method)
        if self._plane is None or operation is None:
            answer: dict[str, Any] = await getattr(self._client, method)(TableName=table, **request)
            return answer
        body = _encode({"TableName": table, **request})
        got = await self._plane.call(operation, ("TableName", table), body)
        if got.status >= ERROR_STATUS:
            raise _refusal(got, operation)
        return _decode(got.body)


def _refusal(answer: Answer, operation: str) -> Exception:
    """What botocore raises for it; the row that failed a condition is with it."""
    from botocore.exceptions import ClientError  # noqa: PLC0415 - see the header of clients.py

    said: dict[str, Any] = {
        "Error": {"Code": answer.code or "", "Message": answer.said},
        "ResponseMetadata": {"HTTPStatusCode": answer.status},
    }
    try:
        there = _decode(answer.body).get("Item")
    except ValueError:
        there = None  # somebody else's page
    if there is not None:
        said["Item"] = there
    error: Exception = ClientError(said, operation)  # type: ignore[arg-type]  # as botocore makes it
    return error
