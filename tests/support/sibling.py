"""The Rust sibling, as a lease table sees it: its requests and its five attributes, and no others."""

from __future__ import annotations

from typing import Any

from ruststream_kinesis.testing import ManualClock
from tests.support.leasing import KEY, PERIOD

__all__ = ["Sibling"]


class Sibling:
    """An instance that knows one shard."""

    def __init__(self, client: Any, table: str, clock: ManualClock, owner: str = "rust") -> None:
        self._client = client
        self._table = table
        self._clock = clock
        self._owner = owner

    async def acquire(self, ttl: float = PERIOD) -> bool:
        """Take what is free, its own, or past its expiry."""
        now = round(self._clock.time() * 1000)
        return await self._update(
            "SET lease_owner = :me, lease_expiry = :until ADD lease_counter :one",
            "attribute_not_exists(lease_owner) OR lease_owner = :me OR lease_expiry < :now",
            {":until": now + round(ttl * 1000), ":now": now},
        )

    async def renew(self, ttl: float = PERIOD) -> bool:
        """Prolong."""
        until = round((self._clock.time() + ttl) * 1000)
        change = "SET lease_expiry = :until ADD lease_counter :one"
        return await self._update(change, "lease_owner = :me", {":until": until})

    async def checkpoint(self, sequence: str) -> bool:
        """Store progress."""
        change = "SET checkpoint = :sequence ADD lease_counter :one"
        return await self._update(change, "lease_owner = :me", {":sequence": sequence})

    async def release(self) -> bool:
        """Give up."""
        change = "REMOVE lease_owner, lease_expiry ADD lease_counter :one"
        return await self._update(change, "lease_owner = :me", {})

    async def item(self) -> dict[str, Any]:
        """Return the row, as it is stored."""
        answer = await self._client.get_item(TableName=self._table, Key=self._key())
        return dict(answer["Item"])

    async def _update(self, change: str, condition: str, values: dict[str, Any]) -> bool:
        given: dict[str, Any] = {":me": self._owner, ":one": 1, **values}
        wire = {
            name: {"S": value} if isinstance(value, str) else {"N": str(value)}
            for name, value in given.items()
        }
        try:
            await self._client.update_item(
                TableName=self._table,
                Key=self._key(),
                UpdateExpression=change,
                ConditionExpression=condition,
                ExpressionAttributeValues=wire,
            )
        except self._client.exceptions.ConditionalCheckFailedException:
            return False
        return True

    @staticmethod
    def _key() -> dict[str, Any]:
        return {"lease_key": {"S": KEY.row}}
