"""From types to the schemas of a document: one component for each class, under a name of its own.

The schemas are msgspec's and pydantic's, which write JSON Schema 2020-12. An AsyncAPI schema is one of
draft 07; `_draft07` says the same in its words.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal

import msgspec

from ruststream_kinesis.codec import is_pydantic_model

__all__ = ["REF", "Schema", "Schemas"]

REF: Final = "#/components/schemas/"

Schema = dict[str, Any]

# Keywords of JSON Schema with other schemas below them; what is below any other one is a value, and
# names what it likes.
_NAMED = frozenset({"properties", "patternProperties", "dependencies"})
_LIST = frozenset({"allOf", "anyOf", "oneOf", "items"})
_ONE = frozenset(
    {
        *("additionalItems", "additionalProperties", "contains", "items", "propertyNames"),
        *("if", "then", "else", "not"),
    }
)


class Schemas:
    """The schemas of the types of one document, made together, so that names can be told apart.

    A class whose name nobody shares has a component of that name; of several, msgspec and pydantic
    name each by its module. A name that is still taken gets a number.

    Args:
        received: Types that payloads are made into.
        sent: Types whose values are published; a pydantic model may look different on that way.
    """

    def __init__(self, received: Iterable[Any], sent: Iterable[Any]) -> None:
        self.components: dict[str, Schema] = {}
        self._known: list[tuple[Any, bool, Schema]] = []
        models: dict[bool, list[Any]] = {False: [], True: []}
        others: dict[bool, list[tuple[Any, bool]]] = {False: [], True: []}
        for kind, sends in [
            *((each, False) for each in received),
            *((each, True) for each in sent),
        ]:
            if is_pydantic_model(kind):
                models[sends].append(kind)
            elif (within := _models_within(kind)) is not None:
                models[sends] += within
                # Described together, so that names are told apart; but what is sent with a model
                # in it has another form than what is read.
                others[sends and bool(within)].append((kind, sends))
        for sends in (False, True):
            wanted = {id(each): each for each in models[sends]}.values()
            self._add_models([each for each in wanted if _has_model_schema(each, sends)], sends)
        for sends in (False, True):
            self._add_others(others[sends], sends)

    def of(self, kind: Any, *, sent: bool = False) -> Schema | None:
        """The schema of a type that the constructor was given; `None` where it has none."""
        for known, way, schema in self._known:
            if known is kind and way is sent:
                return dict(schema)
        return None

    def reserve(self, name: str, schema: Schema) -> Schema:
        """Adds a component that belongs to no type; a reference to it."""
        renamed = self._adopt({name: schema})
        return {"$ref": REF + renamed[name]}

    def _add_models(self, models: list[Any], sends: bool) -> None:
        if not models:
            return
        # Loaded already, as there are models.
        from pydantic.json_schema import models_json_schema  # noqa: PLC0415 - optional

        mode = _mode(sends)
        references, definitions = models_json_schema(
            [(model, mode) for model in models], by_alias=not sends, ref_template=REF + "{model}"
        )
        renamed = self._adopt(definitions.get("$defs", {}))
        self._known += [
            (model, sends, _draft07(references[model, mode], renamed)) for model in models
        ]

    def _add_others(self, ways: list[tuple[Any, bool]], models_sent: bool) -> None:
        schemas, components = msgspec.json.schema_components(
            [kind for kind, _ in ways],
            schema_hook=lambda kind: self._custom(kind, models_sent),
            ref_template=REF + "{name}",
        )
        # What `_custom` refers to stands under its final name already.
        renamed = self._adopt(components)
        self._known += [
            (kind, sends, _draft07(schema, renamed))
            for (kind, sends), schema in zip(ways, schemas, strict=True)
        ]

    def _custom(self, kind: type, sent: bool) -> Schema:
        known = self.of(kind, sent=sent)
        if known is not None:
            # Marked, so that no component of msgspec's with this name is meant.
            return {"$ref": _FINAL + known["$ref"]} if "$ref" in known else known
        return _open(kind)

    def _adopt(self, components: Mapping[str, Schema]) -> dict[str, str]:
        """Takes components over; what each is called from now on.

        What is there already, word for word and down to all that it refers to, is not doubled: a
        model that looks the same on both ways is one component.
        """
        same = {name for name in components if name in self.components}
        while True:
            renamed = self._names(components, same)
            finished = {name: _draft07(schema, renamed) for name, schema in components.items()}
            other = {name for name in same if finished[name] != self.components[name]}
            if not other:
                break
            same -= other
        self.components |= {
            renamed[name]: schema for name, schema in finished.items() if name not in same
        }
        return renamed

    def _names(self, components: Mapping[str, Schema], same: set[str]) -> dict[str, str]:
        """A name for each, its own where it is free."""
        renamed: dict[str, str] = {}
        taken = {*self.components, *components}
        for name in components:
            renamed[name] = name
            if name in self.components and name not in same:
                renamed[name] = next(
                    each for n in itertools.count(2) if (each := f"{name}_{n}") not in taken
                )
                taken.add(renamed[name])
        return renamed


# Before a reference that is not to be renamed.
_FINAL = "final:"


def _open(kind: type) -> Schema:
    """Of a class that only its codec knows."""
    if kind is object:
        return {"description": "Any value."}
    return {"description": f"{kind.__qualname__} has no schema."}


def _models_within(kind: Any) -> list[type] | None:
    """The pydantic models within a type that msgspec can describe; `None` where it cannot."""
    models: list[type] = []

    def custom(cls: type) -> Schema:
        if is_pydantic_model(cls):
            models.append(cls)
        return _open(cls)

    try:
        msgspec.json.schema_components([kind], schema_hook=custom)
    except Exception:  # noqa: BLE001 - a codec may take any type: the document goes without its schema
        return None
    return models


def _has_model_schema(model: Any, sends: bool) -> bool:
    try:
        model.model_json_schema(mode=_mode(sends))
    except Exception:  # noqa: BLE001 - as above
        return False
    return True


def _mode(sends: bool) -> Literal["serialization", "validation"]:
    """How pydantic calls a way; the codec writes the names of fields, and reads by their aliases."""
    return "serialization" if sends else "validation"


def _draft07(schema: Any, renamed: Mapping[str, str]) -> Any:
    """The schema in the words of draft 07, with references to what components are called now."""
    if not isinstance(schema, dict):
        return schema  # true and false are schemas, too

    def inner(each: Any) -> Any:
        return _draft07(each, renamed)

    told: Schema = {}
    for keyword, value in _tuples(schema).items():
        if keyword == "$ref":
            told[keyword] = _reference(value, renamed)
        elif keyword == "discriminator" and isinstance(value, dict):
            # In AsyncAPI it is a name, of a property of the schema itself. Nothing is lost: each
            # alternative says what it is marked with.
            continue
        else:
            told[keyword] = _below(keyword, value, inner)
    if isinstance(told.get("default"), float) and not math.isfinite(told["default"]):
        del told["default"]  # JSON has no such number
    if told.get("uniqueItems") and isinstance(told.get("default"), list):
        # The order of a set is another one in every process.
        told["default"] = sorted(told["default"], key=lambda each: json.dumps(each, default=str))
    if len(told) > 1 and "$ref" in told:
        # Draft 07 sees nothing beside a reference.
        return {"allOf": [{"$ref": told.pop("$ref")}], **told}
    return told


def _reference(target: str, renamed: Mapping[str, str]) -> str:
    if target.startswith(_FINAL):
        return target.removeprefix(_FINAL)
    if not target.startswith(REF):
        return target  # a model's own business
    name = target.removeprefix(REF)
    return REF + renamed.get(name, name)


def _tuples(schema: Schema) -> Schema:
    """Tuples as draft 07 has them: `items` is the list, `additionalItems` what comes behind it."""
    if not isinstance(schema.get("prefixItems"), list):
        return schema
    names = {"prefixItems": "items", "items": "additionalItems"}
    return {names.get(keyword, keyword): value for keyword, value in schema.items()}


def _below(keyword: str, value: Any, inner: Callable[[Any], Any]) -> Any:
    if keyword in _LIST and isinstance(value, list):
        return [inner(each) for each in value]
    if keyword in _ONE:
        return inner(value)
    if keyword in _NAMED and isinstance(value, dict):
        return {name: inner(each) for name, each in value.items()}
    return value
