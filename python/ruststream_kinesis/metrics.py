"""`app_metrics`: an application's metrics for Prometheus.

The library is imported by who asks for metrics (`prometheus.py`), and by nobody else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ruststream_kinesis.errors import ConfigurationError
from ruststream_kinesis.times import HandlerTimes

if TYPE_CHECKING:
    from ruststream_kinesis.app import RustStream
    from ruststream_kinesis.prometheus import AppCollector

__all__ = ["app_metrics"]


def app_metrics(app: RustStream, *, handler_durations: bool = False) -> AppCollector:
    """A collector of the application's metrics, to be registered in a registry of yours.

    It reads `app.state()` when it is scraped; nothing is measured in between. One application has
    one collector: asked for again, it is the same.

    Args:
        app: The application, running or not.
        handler_durations: Time every call of a handler, from the next run on, for a histogram.

    Raises:
        ConfigurationError: `prometheus_client` is not installed.
    """
    try:
        from ruststream_kinesis.prometheus import collector_of  # noqa: PLC0415 - see the header
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("prometheus_client"):
            raise
        raise ConfigurationError(
            "metrics need prometheus_client, not installed here: "
            "pip install 'ruststream-kinesis[prometheus]'"
        ) from error
    if handler_durations and app.handler_times is None:
        app.handler_times = HandlerTimes()
    return collector_of(app)
