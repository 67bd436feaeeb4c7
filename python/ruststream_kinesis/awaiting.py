"""How a `Pending` of the core is awaited: the generators that it gives to `await`.

In Python because a generator hands its result over without an exception to carry it. The core asks
for these by name.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from ruststream_kinesis._core import Pending

__all__ = ["awaited", "returned"]

T = TypeVar("T")


def returned(result: T) -> Generator[Any, None, T]:
    """Of what is decided already."""
    return result
    yield  # type: ignore[unreachable]  # what makes it a generator


def awaited(record: Pending) -> Generator[Any, None, Any]:
    """Of what may be open, as a future of asyncio does it."""
    if not record.done():
        # By this the task knows that it is asked to wait.
        record._asyncio_future_blocking = True  # noqa: SLF001 - the protocol's own name
        yield record
        if not record.done():
            raise RuntimeError("await wasn't used with future")
    return record.result()
