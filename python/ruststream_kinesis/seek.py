"""`Seeker`: moves a subscription to another position while it runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ruststream_kinesis.errors import ConfigurationError
from ruststream_kinesis.position import KinesisPosition

__all__ = ["Seeker"]


class Seeker:
    """Rewinds one subscription of a running service, or moves it on.

    A handler gets one by asking for it: `async def handle(order: Order, seeker: Seeker)`. Outside
    of handlers, `RustStream.seeker` makes one.
    """

    __slots__ = ("_move",)

    def __init__(self, move: Callable[[KinesisPosition], Awaitable[None]]) -> None:
        self._move = move

    async def seek(self, position: KinesisPosition) -> None:
        """Reads on from `position`.

        `horizon`, `latest` and `timestamp` move every shard that this instance holds, and the
        shards without a checkpoint that it takes later; `sequence` moves the shard that it names,
        and that very record is delivered first.

        Whatever was delivered from a moved shard is void from then on: what is queued is dropped,
        copies that wait are cancelled, and settling a delivery changes nothing. That is true of the
        one whose handler called this, too. With `horizon` and `timestamp`, parents that the stream
        still lists are read again before their children.

        It returns once the new position is stored, so that a crash does not lose it; with `latest`
        a record that is published afterwards is read. It waits for no handler, and may be called
        from any thread that runs an event loop. Cancelled, it may have moved the shards already.

        Raises:
            ConfigurationError: Not a `KinesisPosition`.
            NotConnected: The service does not run, or is stopping.
            KinesisError: `sequence` names a shard that this instance does not hold; or the stream
                or the store could not be asked, and nothing that is held was moved.
        """
        if not isinstance(position, KinesisPosition):
            raise ConfigurationError(f"seek takes a KinesisPosition, not {position!r}")
        await self._move(position)
