"""`DynamoLeaseStore`: leases in DynamoDB, for instances that share the shards of a stream.

Checkpoints outlive the process there, too. The logic is `TableLeaseStore`'s; this file is what a
user configures.
"""

from __future__ import annotations

import dataclasses
import re
from functools import partial
from typing import TYPE_CHECKING, Any

from ruststream_kinesis.clients import ClientSettings, Way, check_endpoint, check_transport
from ruststream_kinesis.clock import Clock, SystemClock
from ruststream_kinesis.errors import ConfigurationError
from ruststream_kinesis.leases.dynamo_table import DynamoTable
from ruststream_kinesis.leases.tabled import TableLeaseStore

if TYPE_CHECKING:
    from aiobotocore.config import AioConfig
    from aiobotocore.session import AioSession

__all__ = ["DynamoLeaseStore"]

# API reference of DynamoDB, `TableName`: a name, or the ARN of a table of another account.
_TABLE = re.compile(
    r"(?:arn:[a-z0-9-]+:dynamodb:[a-z0-9-]+:[0-9]{12}:table/)?[a-zA-Z0-9_.-]{3,255}", re.ASCII
)


class DynamoLeaseStore(TableLeaseStore):
    """Leases and checkpoints in a DynamoDB table. Making one does no I/O.

    The table has one key, the string `lease_key`, and nothing else; one table serves any number of
    streams, groups and services, the Rust sibling's among them.

    Args:
        table: Its name, or its ARN where it is another account's.
        create: Create it, billed by request, if it does not exist.
        region: AWS region; by default the session's own chain (environment, profile).
        endpoint_url: Another endpoint, for example of a local server.
        session: An `aiobotocore` session to take credentials and configuration from.
        config: An `AioConfig` merged over ours. Retries are not taken from it: a call that fails
            for a passing reason is made again here, for as long as the lease allows.
        test_credentials: Sign with made-up credentials, for a local server.
        transport: How the calls for rows reach the table. `"thin"`, the default, signs them in the
            native core and sends them over the HTTP session of aiobotocore's client, as
            `KinesisBroker` does with its own; `"botocore"` makes every call the stock way: the way
            back where the short one is in doubt.
        clock: Time; for tests.

    Raises:
        ConfigurationError: A value is refused.
    """

    def __init__(
        self,
        table: str,
        *,
        create: bool = False,
        region: str | None = None,
        endpoint_url: str | None = None,
        session: AioSession | None = None,
        config: AioConfig | None = None,
        test_credentials: bool = False,
        transport: Way = "thin",
        clock: Clock | None = None,
    ) -> None:
        if not isinstance(table, str) or _TABLE.fullmatch(table) is None:
            raise ConfigurationError(
                f"invalid lease table {table!r}: 3 to 255 of a-z, A-Z, 0-9, '_', '.', '-', or an ARN"
            )
        check_endpoint(endpoint_url)
        check_transport(transport)
        clock = clock or SystemClock()
        self._settings = ClientSettings(region, endpoint_url, session, config, test_credentials)
        self._rows = partial(DynamoTable, table, clock=clock, create=create, transport=transport)
        super().__init__(self._rows(self._settings), clock=clock)
        self.table = table
        """Its name or ARN."""

    def override(
        self,
        *,
        region: str | None = None,
        endpoint_url: str | None = None,
        test_credentials: bool | None = None,
    ) -> None:
        """Replaces settings of a store that an application made, before it is opened.

        Args:
            region: As in the constructor; `None` leaves what is set, here and below.
            endpoint_url: As in the constructor.
            test_credentials: As in the constructor.

        Raises:
            ConfigurationError: A value is refused.
        """
        check_endpoint(endpoint_url)
        given: dict[str, Any] = {
            "region": region,
            "endpoint_url": endpoint_url,
            "test_credentials": test_credentials,
        }
        self._settings = dataclasses.replace(
            self._settings, **{name: value for name, value in given.items() if value is not None}
        )
        self._table = self._rows(self._settings)

    def __repr__(self) -> str:
        return f"DynamoLeaseStore({self.table!r})"
