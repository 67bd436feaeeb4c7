"""Requests and answers between a process and a service, with everything that happens on the way.

Invariant: a request takes effect at one moment or not at all, whatever becomes of its answer, and
of the process that sent it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tests.sim.loop import Scheduler

__all__ = ["Link", "Weather"]

T = TypeVar("T")


@dataclass(slots=True)
class Weather:
    """How a service is doing: probabilities, and seconds."""

    refuse: float = 0.0
    """The request takes no effect, and its answer says so."""
    lose: float = 0.0
    """The request takes effect, and its answer says that it failed."""
    hang: float = 0.0
    """There is no answer; whether it takes effect is open."""
    slow: float = 0.0
    """Request or answer is on its way for seconds."""

    @property
    def fair(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.refuse or self.lose or self.hang or self.slow)


FAIR = Weather()


class Link:
    """One service, as the processes reach it.

    Args:
        scheduler: Time.
        rng: What happens on the way.
        refused: Makes the error of a request that failed, or whose answer was lost.
        patience: Seconds after which a caller without an answer gets an error; `None`: never, it
            has a deadline of its own.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        rng: random.Random,
        refused: Callable[[bool], Exception],
        patience: float | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._random = rng.random
        self._refused = refused
        self._patience = patience
        self.weather = FAIR

    async def call(self, effect: Callable[[], T]) -> T:
        """Send a request from the running loop, and wait for its answer."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        scheduler, rnd = self._scheduler, self._random

        def reply(value: T | None, error: Exception | None) -> None:
            loop.call_soon(_resolve, answer, value, error)

        def arrive() -> None:
            weather, roll = self.weather, rnd()
            value, error = None, None
            if roll < weather.refuse:
                error = self._refused(False)
            else:
                roll -= weather.refuse
                hangs = roll < weather.hang
                if hangs and rnd() < 0.5:
                    self._expire(reply)
                    return
                try:
                    value = effect()
                except Exception as raised:  # noqa: BLE001 - it is the answer
                    error = raised
                if hangs:
                    self._expire(reply)
                    return
                if roll - weather.hang < weather.lose:
                    value, error = None, self._refused(True)
            scheduler.at(scheduler.now + self._delay(), lambda: reply(value, error))

        scheduler.at(scheduler.now + self._delay(), arrive)
        return await answer

    def _delay(self) -> float:
        rnd = self._random
        if self.weather.slow and rnd() < self.weather.slow:
            return rnd() * 6.0
        return 0.001 + 0.02 * rnd() * rnd()

    def _expire(self, reply: Callable[[None, Exception], None]) -> None:
        if self._patience is not None:
            now = self._scheduler.now
            self._scheduler.at(now + self._patience, lambda: reply(None, self._refused(True)))


def _resolve(answer: asyncio.Future[Any], value: Any, error: Exception | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(value)
    else:
        answer.set_exception(error)
