"""`run --workers N`: several processes of one service, each an instance of its own.

Invariant: as many as were asked for run, or are about to be started again, until a stop; one that
cannot run ends the command instead of being started for ever.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from ruststream_kinesis.backoff import Backoff
from ruststream_kinesis.cli.loading import NoTarget, load_app
from ruststream_kinesis.cli.logs import log_to_stderr, say
from ruststream_kinesis.cli.processes import Spawn, Stopping, spawner, was_stopped
from ruststream_kinesis.cli.run import RunOptions
from ruststream_kinesis.clock import Clock, SystemClock, wait
from ruststream_kinesis.errors import ConfigurationError, KinesisError
from ruststream_kinesis.signals import listening

__all__ = ["Workers", "run_workers"]

logger = logging.getLogger("ruststream_kinesis.cli")

# A worker that dies so often within so many seconds will not run the next time either: whoever
# started the command should know, and may have another machine for it.
_DEATHS = 5
_WITHIN = 60.0
# Seconds before a worker is started again, growing.
_FIRST, _CAP = 1.0, 30.0
# The exit code of a wrong command line: no other try can be better.
_WRONG = 2


def run_workers(options: RunOptions, count: int) -> int:
    """Runs `count` processes of a service until a signal or a failure.

    Returns:
        The exit code: 0 after a stop that was asked for and went well in every process, 1 after a
        failure, 2 where the command line is wrong.
    """
    try:
        # Here as well as in every worker: what is wrong with it is said once.
        app = load_app(options.target)
        if not app.broker.connection.store.shared:
            raise ConfigurationError(
                f"--workers {count}: the application keeps its leases in memory, where no process "
                "knows of the others, and each would read every shard: give its KinesisBroker a "
                "lease_store, for example DynamoLeaseStore"
            )
    except KinesisError as error:
        if options.debug:
            raise
        say(str(error), options.log_format)
        return _WRONG if isinstance(error, NoTarget) else 1
    log_to_stderr(options.log_level, options.log_format)
    workers = Workers(count, spawner(options), SystemClock())

    async def run() -> int:
        with listening(workers.stopping.ask):
            return await workers.run()

    code = asyncio.run(run())
    if workers.reason is not None:
        say(workers.reason, options.log_format)
    return code


class Workers:
    """Keeps workers running.

    Args:
        count: How many.
        spawn: Starts one.
        clock: Time between two starts.
    """

    def __init__(self, count: int, spawn: Spawn, clock: Clock) -> None:
        self._count = count
        self._spawn = spawn
        self._clock = clock
        self.stopping = Stopping()
        self._code = 0
        self.reason: str | None = None
        """Why it ended, where nobody asked for it."""

    async def run(self) -> int:
        """Runs until all have ended after a stop; returns the exit code."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for number in range(1, self._count + 1):
                    tasks.create_task(self._keep(str(number)), name=f"worker[{number}]")
        finally:
            await self.stopping.kill()
        return self._code

    async def _keep(self, number: str) -> None:
        deaths: deque[float] = deque(maxlen=_DEATHS)
        backoff = Backoff(_FIRST, _CAP)
        stopping = self.stopping.asked
        while not stopping.is_set():
            started = self._clock.monotonic()
            code = await (await self.stopping.run(self._spawn, number)).code
            if stopping.is_set():
                if not was_stopped(code):
                    logger.error("worker %s ended its stop with exit code %d", number, code)
                    self._code = self._code or 1
                return
            now = self._clock.monotonic()
            deaths.append(now)
            if code == _WRONG:
                self._give_up(f"worker {number} cannot run (see above)", _WRONG)
            elif len(deaths) == _DEATHS and now - deaths[0] <= _WITHIN:
                self._give_up(
                    f"worker {number} died {_DEATHS} times within {_WITHIN:g} s (see above), the "
                    f"last time with {_ending(code)}: all workers were stopped",
                    1,
                )
            else:
                if now - started > _WITHIN:
                    backoff.reset()
                delay = backoff.next()
                logger.warning(
                    "worker %s ended with %s; starting it again in %.1f s",
                    number,
                    _ending(code),
                    delay,
                )
                await wait(self._clock, delay, stopping)

    def _give_up(self, reason: str, code: int) -> None:
        if not self.stopping.asked.is_set():
            self._code, self.reason = code, reason
            self.stopping.ask()


def _ending(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"
