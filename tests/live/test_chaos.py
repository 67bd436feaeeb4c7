"""A short run of the chaos test; `make chaos MINUTES=10` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from tests.chaos.report import show
from tests.chaos.run import chaos
from tests.support.servers import Server

# Fixed: a suite that fails must fail again. Long runs take a new seed each.
SEED = 89
SECONDS = 48.0


@pytest.mark.timeout(200)
async def test_a_minute_of_chaos_loses_nothing_and_keeps_the_order(
    kinesis_local: Server, dynalite_server: Server, tmp_path: Path
):
    verdict = await chaos(
        SEED,
        SECONDS,
        kinesis=kinesis_local.url,
        dynamodb=dynalite_server.url,
        folder=tmp_path,
        say=print,
    )
    show(verdict, Console(width=110))
    assert verdict.failed == {}
    done = {fault.kind for fault in verdict.story.faults}
    assert done == {"kill", "pause", "stop", "start", "block", "split", "merge"}
    assert len(verdict.story.puts) > 500
