"""`Undecided`: what every wait of the kit raises when it has lasted long enough."""

from __future__ import annotations

from ruststream_kinesis.errors import KinesisError

__all__ = ["Undecided"]


class Undecided(KinesisError):
    """A publish of a test whose deliveries did not all get an outcome, or time that never passes.

    The message names the record and what is still open; the cause (`__cause__`) is what ended the
    service, where something did.
    """
