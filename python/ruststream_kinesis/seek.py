"""`Seeker`: moves a subscription to another position while it runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ruststream_kinesis.errors import ConfigurationError, KinesisError
from ruststream_kinesis.position import KinesisPosition

__all__ = ["Seeker", "not_held", "unknown_record"]


def not_held(stream: str, shard_id: str | None) -> KinesisError:
    """What a seek to a record of somebody else's shard is answered with."""
    return KinesisError(
        "this instance does not hold the shard, so it cannot move it",
        stream=stream,
        shard_id=shard_id,
    )


def unknown_record(stream: str, position: KinesisPosition) -> KinesisError:
    """What a seek to a record that its shard does not have is answered with."""
    return KinesisError(
        "nothing was moved: the stream refuses to read from this record. Seek to the position of "
        "a record of this very shard (KinesisMessage.position) that is still retained, or to a "
        "timestamp or the horizon",
        stream=stream,
        shard_id=position.shard_id,
        sequence_number=position.sequence_number,
    )


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

        `horizon`, `latest` and `timestamp` move every shard that this instance holds, or gave up
        and that nobody took since, and the shards without a checkpoint that it takes later;
        `sequence` moves the shard that it names, and that very record is delivered first.

        Whatever was delivered from a moved shard is void from then on: what is queued is dropped,
        and settling a delivery changes nothing. That is true of the one whose handler called this,
        too. With `horizon` and `timestamp`, parents that the stream still lists are read again
        before their children.

        Copies of a moved shard that wait (`retry_after`) are cancelled, whichever record they are
        of and with either `deferred=`: a record from the position on is delivered again in place
        of its copy; one before it is not, and has no further attempt. So a handler that seeks to
        its own position gives up the copies of earlier records.

        Several seeks have their effect in the order of the calls: the last one decides.

        It returns once the new position is stored, so that a crash does not lose it; with `latest`
        a record that is published afterwards is read. It waits for no handler, and may be called
        from any thread that runs an event loop. Cancelled, it may have moved the shards already.

        Raises:
            ConfigurationError: Not a `KinesisPosition`.
            NotConnected: The service does not run, or is stopping.
            KinesisError: `sequence` names a shard that this instance does not hold, or a record
                that the stream cannot be read from; or the stream or the store could not be asked,
                or did not finish taking and releasing shards. Nothing that is held was moved.
        """
        if not isinstance(position, KinesisPosition):
            raise ConfigurationError(f"seek takes a KinesisPosition, not {position!r}")
        await self._move(position)
