"""The in-process log: a service's own application, tested without a server.

    async with TestApp(app) as test:
        await test.publish(Order(id=1), "orders")
        assert test.published("confirmations")[0].decode(Confirmation) == Confirmation(1)

Nothing of the package imports this one.
"""

from ruststream_kinesis.testing.app import SubscriberCalls, TestApp
from ruststream_kinesis.testing.clock import ManualClock
from ruststream_kinesis.testing.log import LogRecord
from ruststream_kinesis.testing.tracking import Delivery, Undecided

__all__ = ["Delivery", "LogRecord", "ManualClock", "SubscriberCalls", "TestApp", "Undecided"]
