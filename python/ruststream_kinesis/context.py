"""What a lifespan shares: the application's `context`, and how a handler asks for a part of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ruststream_kinesis.errors import ConfigurationError

__all__ = ["AppContext", "Context"]


@dataclass(frozen=True, slots=True)
class Context:
    """Marks a handler's parameter as a part of what the application's lifespan yields.

    `db: Annotated[Database, Context()]` is the entry of that name. Whether there is one is looked at
    when the service starts, before anything is read.

    Args:
        name: Key of the entry; by default the parameter's own name.
    """

    name: str | None = None

    def __post_init__(self) -> None:
        if self.name is not None and not isinstance(self.name, str):
            raise ConfigurationError(f"a Context's name is text: {self.name!r}")


class AppContext(dict[str, Any]):
    """What the lifespan yielded; empty before it was entered and after it was left."""

    def __missing__(self, name: str) -> Any:
        """A wrong name says which ones are right."""
        raise ConfigurationError(self.lacks(name))

    def lacks(self, name: str) -> str:
        """Says that there is no such entry, and which there are."""
        there = ", ".join(map(repr, self)) or "nothing"
        return f"the context has no {name!r}: the lifespan has yielded {there}"
