"""Our signature of a request is botocore's of the same request."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from urllib.parse import urlsplit

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials

from ruststream_kinesis._core import Signer, encode_get_records

SIGNED = {
    "Content-Type": "application/x-amz-json-1.1",
    "X-Amz-Target": "Kinesis_20131202.GetRecords",
}
UNSIGNED = {"User-Agent": "somebody", "Accept-Encoding": "identity"}
SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"


def botocores(url: str, body: bytes, token: str | None, extra: dict[str, str]) -> dict[str, str]:
    """Headers of botocore's own, signed now."""
    keys = ReadOnlyCredentials("AKIDEXAMPLE", SECRET, token)
    request = AWSRequest("POST", url, {**SIGNED, **extra}, body)
    SigV4Auth(keys, "kinesis", "eu-north-1").add_auth(request)
    return {name.lower(): value for name, value in [*request.headers.items(), *UNSIGNED.items()]}


def ours(
    url: str, body: bytes, token: str | None, time: float, extra: dict[str, str]
) -> dict[str, str]:
    """Headers of ours, signed at `time`."""
    signer = Signer(url, "eu-north-1", "kinesis", {**SIGNED, **extra}, UNSIGNED)
    headers = signer.sign(body, "AKIDEXAMPLE", SECRET, token, time)
    return {name.lower(): value for name, value in headers.items()}


@pytest.mark.parametrize("token", [None, "FwoGZXIvYXdzE//+=" * 40], ids=["long-lived", "temporary"])
@pytest.mark.parametrize(
    "url",
    [
        "https://kinesis.eu-north-1.example.com/",
        "https://123456789012.data-kinesis.eu-north-1.example.com/",
        "http://127.0.0.1:4567/",
        "http://localhost:4566/some/path",
        "http://[::1]:4567/",
    ],
)
@pytest.mark.parametrize("body", [b"", b'{"ShardIterator": "x"}', b"\xff" * 200_000])
@pytest.mark.parametrize("extra", [{}, {"X-Rule": "one,  two"}], ids=["plain", "rule's header"])
def test_our_signature_is_botocores(
    token: str | None, url: str, body: bytes, extra: dict[str, str]
):
    theirs = botocores(url, body, token, extra)
    signed_at = datetime.strptime(theirs["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    got = ours(url, body, token, signed_at.timestamp() + 0.9, extra)
    assert got == theirs
    assert urlsplit(url).netloc not in got["authorization"]


def test_another_secret_time_or_body_is_another_signature():
    url = "https://kinesis.eu-north-1.example.com/"
    signer = Signer(url, "eu-north-1", "kinesis", SIGNED, UNSIGNED)
    signatures = {
        signer.sign(body, "A", secret, token, time)["authorization"]
        for body in (b"", b"x")
        for secret in ("s", "t")
        for token in (None, "u")
        for time in (1e9, 2e9)
    }
    assert len(signatures) == 16


@pytest.mark.parametrize(
    ("url", "token", "time"),
    [
        ("https://host/", "line\nbreak", 1e9),
        ("https://host/", None, -1.0),
        ("https://host/", None, float("nan")),
        ("https://host/", None, float("inf")),
        ("no url", None, 1e9),
    ],
)
def test_what_cannot_be_signed_is_a_value_error_that_holds_no_credentials(
    url: str, token: str | None, time: float
):
    signer = Signer(url, "eu-north-1", "kinesis", SIGNED, {})
    with pytest.raises(ValueError, match="sign") as caught:
        signer.sign(b"", "AKID", "secret", token, time)
    assert "secret" not in str(caught.value)
    assert "break" not in str(caught.value)


def test_the_headers_of_one_request_are_not_those_of_the_next():
    signer = Signer("https://host/", "r", "kinesis", SIGNED, UNSIGNED)
    signer.sign(b"", "A", "s", "token", 1e9)["X-Mine"] = "x"
    second = signer.sign(b"", "A", "s", None, 1e9)
    assert "X-Mine" not in second
    assert "x-amz-security-token" not in second


@pytest.mark.parametrize("arn", [None, "arn:aws:kinesis:eu-north-1:123456789012:stream/s"])
def test_the_body_of_a_read_is_json(arn: str | None):
    body = json.loads(encode_get_records('a"\\/+=\n日', 10_000, arn))
    asked = {"ShardIterator": 'a"\\/+=\n日', "Limit": 10_000}
    assert body == (asked if arn is None else {**asked, "StreamARN": arn})
