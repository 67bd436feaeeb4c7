"""The test kit: a service's own application, tested without a server, or on one.

    async with TestApp(app) as test:
        await test.publish(Order(id=1), "orders")
        assert test.published("confirmations")[0].decode(Confirmation) == Confirmation(1)

Nothing of the package imports this one. The names are imported when they are asked for, since
pytest imports the plugin in here at the start of every run.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ruststream_kinesis.testing.app import TestApp
    from ruststream_kinesis.testing.calls import SubscriberCalls
    from ruststream_kinesis.testing.clock import LiveClock, ManualClock
    from ruststream_kinesis.testing.delivery import Delivery
    from ruststream_kinesis.testing.faults import Fault
    from ruststream_kinesis.testing.record import LogRecord
    from ruststream_kinesis.testing.undecided import Undecided

__all__ = [
    "Delivery",
    "Fault",
    "LiveClock",
    "LogRecord",
    "ManualClock",
    "SubscriberCalls",
    "TestApp",
    "Undecided",
]

_HOMES = {
    "Delivery": "delivery",
    "Fault": "faults",
    "LiveClock": "clock",
    "LogRecord": "record",
    "ManualClock": "clock",
    "SubscriberCalls": "calls",
    "TestApp": "app",
    "Undecided": "undecided",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = found
    return found
