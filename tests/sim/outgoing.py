"""What handlers caused: copies, dead letters and replies, from what was said to the stream.

Invariants:

* Each is put because a handler said so, in a process whose shard was not moved since. (What came
  early is put off by a copy that no handler asks for.)
* A copy counts one delivery more than its original, and has its payload and key.
* A dead letter says where it comes from, and has payload and key of that record.
* Where nothing goes wrong, each is put once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from tests.sim.kinesis import Kinesis, Record
from tests.sim.process import Process
from tests.sim.tenures import Delivery
from tests.sim.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Outgoing"]

_Key = tuple[Process, str, Hashable]
_ORIGIN = "x-ruststream-origin-"


class Outgoing:
    """What one subscription puts.

    Args:
        trace: Events and failures.
        kinesis: The stream.
        done: Called with deliveries that are done by it.
        passed: Called with records that nobody needs to see again, and the process that saw to it.
    """

    def __init__(
        self,
        trace: Trace,
        kinesis: Kinesis,
        done: Callable[[Delivery], None],
        passed: Callable[[Process, Record], None],
    ) -> None:
        self._trace = trace
        self._kinesis = kinesis
        self._done = done
        self._passed = passed
        self._expected: dict[_Key, list[list[Delivery]]] = {}
        """What handlers asked for: each with the deliveries that it is for."""
        self._sent: set[_Key] = set()
        self._once: set[tuple[str, Hashable]] = set()

    def asked(self, kind: str, what: Hashable, deliveries: Sequence[Delivery]) -> None:
        """A handler said something that is to be put."""
        key = (deliveries[0].held.process, kind, what)
        self._expected.setdefault(key, []).append(list(deliveries))

    def sends(self, process: Process, kind: str, what: Hashable) -> None:
        """A process is about to put it."""
        asked = self._expected.get((process, kind, what))
        if kind == "copy" and any(each.early for each in self._kinesis.of_value[int(str(what))]):
            return
        if asked is not None and all(each.void for said in asked for each in said):
            self._trace.fail(process, f"puts a {kind} of {what}, which is void since a seek")
        elif asked is None and (process, kind, what) not in self._sent:
            self._trace.fail(process, f"puts a {kind} of {what} that no handler asked for")

    def _arrived(self, process: Process, kind: str, what: Hashable) -> None:
        key = (process, kind, what)
        asked = self._expected.pop(key, [])
        self._sent.add(key)
        if self._trace.exact and kind != "copy":
            if (kind, what) in self._once:
                self._trace.fail(process, f"a {kind} of {what} was put twice")
            self._once.add((kind, what))
        # Which delivery asked can not be told, where it was delivered again.
        for each in chain.from_iterable(asked):
            self._done(each)

    def copied(self, process: Process, copy: Record) -> None:
        """A copy is in the stream: its original is done."""
        self._arrived(process, "copy", copy.value)
        original = self._kinesis.values[copy.value]
        earlier = self._kinesis.of_value[copy.value][:-1]
        attempts = {each.attempt + 1 for each in earlier}
        # One that came early spends no attempt.
        attempts |= {each.attempt for each in earlier if each.early}
        if copy.attempt not in attempts or copy.key != original.key:
            self._trace.fail(
                process, f"copy {copy.number} of {original.number} is of attempt {copy.attempt}"
            )
        # Whichever of them this is a copy of, none before it needs to be seen again. It may have been
        # no handler that asked for it: what came too early is put off by another copy.
        for record in earlier:
            self._passed(process, record)

    def buried(
        self, process: Process, headers: Mapping[str, str], payload: bytes, key: str
    ) -> None:
        """A dead letter is in its stream."""
        number = int(headers[f"{_ORIGIN}sequence-number"])
        record = self._kinesis.records[number]
        self._trace.note(process, "dead letter", number)
        if (
            headers[f"{_ORIGIN}shard"] != record.shard.shard_id
            or headers["x-ruststream-attempts"] != str(record.attempt)
            or payload != str(record.value).encode()
            or key != record.key
        ):
            self._trace.fail(process, f"wrong dead letter of {number}: {headers} {payload!r} {key}")
        self._arrived(process, "dead letter", number)

    def replied(self, process: Process, numbers: tuple[int, ...]) -> None:
        """A reply is in its stream."""
        self._trace.note(process, "reply", numbers)
        self._arrived(process, "reply", numbers)
