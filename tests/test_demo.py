"""`make demo`: it ends by itself, shows what it did, and notices when a count is off."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import pytest

from examples import demo, orders
from ruststream_kinesis.cli import demo as packaged
from ruststream_kinesis.testing import TestApp
from tests.support.servers import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.servers import Server


def rows(printed: str) -> dict[str, str]:
    """The table as it was printed: the last word of a line by the words before it."""
    found = (line.rpartition(" ") for line in printed.splitlines())
    return {name.strip(): value for name, _, value in found}


async def run(*arguments: str) -> tuple[int, str]:
    """Runs the demo in a process of its own and returns its exit code and what it printed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "examples.demo", *arguments),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, printed.decode()


class TestExample:
    async def test_an_order_is_confirmed_under_the_key_of_its_customer(self):
        async with TestApp(orders.app) as test:
            await test.publish(orders.Order(7, "ada", 3, 250), "orders", partition_key="any")

            (confirmation,) = test.published("confirmations")
            assert confirmation.partition_key == "ada"
            assert confirmation.decode(orders.Confirmation) == orders.Confirmation(7, "ada", 750)

    async def test_an_order_for_nothing_is_dropped_without_a_confirmation(self):
        async with TestApp(orders.app) as test:
            await test.publish(orders.Order(7, "ada", 0, 250), "orders")

            assert test.published("confirmations") == []
            assert test.subscriber("orders").counters.dropped == 1


class TestDemo:
    def test_every_count_is_right_and_in_the_table(self, capsys):
        assert demo.main(["--orders", "1200"]) == 0

        printed = capsys.readouterr().out
        table = rows(printed)
        assert {name: table[name] for name in ("records in", "handled", "dropped", "replies")} == {
            "records in": "1,200",
            "handled": "1,199",
            "dropped": "2",
            "replies": "1,198",
        }
        assert int(table["records per second"].replace(",", "")) > 0
        assert table["last sequence number"].isdigit()
        # Not a terminal: progress comes in lines.
        assert "1,000 of 1,200 orders" in printed

    def test_a_count_that_is_off_is_a_failure(self, capsys, monkeypatch):
        made = packaged.orders

        def without_the_last(count: int) -> Iterator[object]:
            *kept, _ = made(count)
            yield from kept

        monkeypatch.setattr(packaged, "orders", without_the_last)

        assert demo.main(["--orders", "50"]) == 1
        assert "expected 50, got 49" in capsys.readouterr().out

    @pytest.mark.parametrize("count", ["0", "9", "-1", "many"])
    def test_a_number_of_orders_that_makes_no_demo_is_refused(self, capsys, count):
        with pytest.raises(SystemExit) as end:
            demo.main(["--orders", count])

        assert end.value.code == 2
        assert "--orders" in capsys.readouterr().err

    async def test_it_ends_by_itself_in_a_process_of_its_own(self):
        code, printed = await run("--orders", "500")

        assert code == 0
        assert "Every count is right" in printed

    async def test_the_same_service_runs_against_a_server(self, moto_server: Server):
        code, printed = await run("--orders", "60", "--endpoint-url", moto_server.url)

        assert code == 0, printed
        assert rows(printed)["replies"] == "58"

    async def test_an_endpoint_that_nobody_listens_at_is_one_line(self, unused_tcp_port):
        url = f"http://127.0.0.1:{unused_tcp_port}"

        code, printed = await run("--orders", "10", "--endpoint-url", url)

        assert code == 1
        assert "Traceback" not in printed
        assert url in printed
