"""The in-process log: a service's own application, tested without a server."""

from ruststream_kinesis.testing.clock import ManualClock

__all__ = ["ManualClock"]
