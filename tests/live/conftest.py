"""`LIVE_TRANSPORT=botocore` runs the whole live suite by aiobotocore's own way (`make live-stock`).

Services in processes of their own look at the variable themselves (`tests/chaos/service.py`).
"""

from __future__ import annotations

import os

import pytest

from ruststream_kinesis import broker
from ruststream_kinesis.aws import AwsTransport


@pytest.fixture(autouse=True, scope="session")
def _transport() -> None:
    way = os.environ.get("LIVE_TRANSPORT", "thin")
    if way == "botocore":
        # Whatever a test asks for: what it says of the short way holds for this one, too.
        broker._TRANSPORTS["thin"] = AwsTransport
    elif way != "thin":
        pytest.exit(f"LIVE_TRANSPORT must be thin or botocore: {way!r}", returncode=4)
