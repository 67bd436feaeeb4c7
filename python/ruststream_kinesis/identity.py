"""Whether the stream is still the one that was opened: asked only where something speaks against it.

A stream that was deleted and created anew under its name has the same shard ids and other records.
Read on, it would look like a loss of data, and its records would be checkpointed in rows that belong
to the old one. Its creation time tells; no round asks for it, what is refused or gone does.
"""

from __future__ import annotations

import asyncio
import logging

from ruststream_kinesis.connection import Connection
from ruststream_kinesis.errors import AccessDenied, KinesisError, RequestError
from ruststream_kinesis.opening import check_created
from ruststream_kinesis.stream import StreamRef
from ruststream_kinesis.transport import StreamInfo
from ruststream_kinesis.wording import fields

__all__ = ["Identity", "is_gone"]

logger = logging.getLogger("ruststream_kinesis")


def is_gone(error: BaseException) -> bool:
    """Whether a failure says that a stream is not there; of a shard, it may mean that one alone."""
    return isinstance(error, RequestError) and error.code == "ResourceNotFoundException"


class Identity:
    """One stream, known by its creation time.

    Args:
        stream: Which stream.
        connection: Makes the call.
    """

    def __init__(self, stream: StreamRef, connection: Connection) -> None:
        self._stream = stream
        self._connection = connection
        self._created: float | None = None
        self._asking = asyncio.Lock()
        self._asked = self._answered = self._doubts = self._cleared = 0
        self._answer: KinesisError | None = None

    def opened(self, info: StreamInfo) -> None:
        """It is this one from now on."""
        self._created = info.created

    def doubt(self) -> None:
        """The stream was not there: whether it is the same is to be confirmed when it is again."""
        self._doubts += 1

    @property
    def doubted(self) -> bool:
        """Whether something was gone since it was last confirmed."""
        return self._doubts != self._cleared

    async def confirm(self) -> None:
        """Makes sure that it is the same stream.

        Thousands of readers may ask at once: they share an answer, if it was asked for after they
        came.

        Raises:
            StreamRecreated: It is another one.
            KinesisError: It could not be asked, or there is none; doubts stay.
        """
        came = self._asked
        async with self._asking:
            # The one that was on its way when we came may be from before our doubts.
            if self._answered <= came:
                number = self._asked = self._asked + 1
                self._answer = await self._ask()
                self._answered = number
            if self._answer is not None:
                raise self._answer

    async def _ask(self) -> KinesisError | None:
        doubts = self._doubts
        try:
            info = await self._connection.transport.describe_stream(self._stream)
            check_created(self._stream.name, self._created, info.created)
        except AccessDenied as error:
            # Allowed at the start and not any more: nobody can know, and reading must go on.
            logger.warning(
                "cannot look whether stream %s is the same: %s",
                self._stream,
                error,
                extra=fields(self._stream.name),
            )
        except KinesisError as error:
            return error
        self._cleared = doubts
        return None
