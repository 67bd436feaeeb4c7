"""A document as text."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["to_json", "to_yaml"]


def to_json(document: dict[str, Any]) -> str:
    """The document as JSON, indented."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def to_yaml(document: dict[str, Any]) -> str:
    """The document as YAML.

    Raises:
        ModuleNotFoundError: PyYAML is not installed.
    """
    import yaml  # noqa: PLC0415 - of the extra `cli`

    class Dumper(yaml.SafeDumper):
        """Text of several lines stays as it is, which is easier to read."""

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        style = "|" if "\n" in value else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    return str(yaml.dump(document, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=100))
