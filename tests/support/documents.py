"""What a right AsyncAPI document is: by the official schema, and in what that cannot say."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any

import jsonschema

from tests.support.servers import ROOT


@functools.cache
def _official() -> jsonschema.Draft7Validator:
    schema = json.loads((ROOT / "tests" / "data" / "asyncapi-3.0.0.json").read_text())
    return jsonschema.Draft7Validator(schema)


def check_document(document: dict[str, Any]) -> None:
    """Fails unless the document is valid and every reference in it leads somewhere."""
    wrong = [f"{error.json_path}: {error.message}" for error in _official().iter_errors(document)]
    assert wrong == []
    for reference in references(document):
        resolve(document, reference)
    for operation in document["operations"].values():
        # The messages of an operation are some of its channel's.
        channel = operation["channel"]["$ref"]
        assert all(
            each["$ref"].startswith(f"{channel}/messages/") for each in operation["messages"]
        )


def references(node: Any) -> Iterator[str]:
    """Every `$ref` below a node."""
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            # In draft 07, whatever stands beside a reference is not seen.
            assert list(node) == ["$ref"], node
            yield node["$ref"]
        for each in node.values():
            yield from references(each)
    elif isinstance(node, list):
        for each in node:
            yield from references(each)


def resolve(document: dict[str, Any], reference: str) -> Any:
    """What a reference leads to."""
    found: Any = document
    for step in reference.removeprefix("#/").split("/"):
        found = found[step]
    return found


def judge(document: dict[str, Any], message: str, payload: Any) -> list[str]:
    """What is wrong with a payload, by the schema of a message of the document."""
    schema = document["components"]["messages"][message]["payload"]
    judging = jsonschema.Draft7Validator({"components": document["components"], "allOf": [schema]})
    return [error.message for error in judging.iter_errors(payload)]
