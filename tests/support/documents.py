"""What a right AsyncAPI document is: by the official schema, and in what that cannot say."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema

from ruststream_kinesis import KinesisBroker, RustStream
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


def service(broker: KinesisBroker | None = None) -> RustStream:
    """An application that declares nothing yet."""
    return RustStream(broker or KinesisBroker(), title="service", version="1.2.3")


def described(app: RustStream) -> dict[str, Any]:
    """Its document, which is a valid one."""
    document = app.asyncapi()
    check_document(document)
    return document


def taking(kind: Any, returns: Any = None) -> Callable[[Any], Any]:
    """A handler with these annotations."""

    def handle(value: Any) -> Any:
        raise NotImplementedError

    handle.__annotations__ = {"value": kind, "return": returns}
    return handle


def reading(kind: Any, returns: Any = None, **options: Any) -> dict[str, Any]:
    """The document of a service that takes one type, and gives back what `returns` says."""
    app = service()
    app.subscriber("orders", **options)(taking(kind, returns))
    return described(app)


def payload(document: dict[str, Any], message: str) -> Any:
    """The schema of what a message carries."""
    found = document["components"]["messages"][message]["payload"]
    return resolve(document, found["$ref"]) if "$ref" in found else found


def messages(document: dict[str, Any], operation: str) -> list[str]:
    """The names of an operation's messages."""
    return [
        each["$ref"].rpartition("/")[2] for each in document["operations"][operation]["messages"]
    ]
