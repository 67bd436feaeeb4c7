"""A document as one page of HTML: no script, nothing from elsewhere, everything escaped."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from ruststream_kinesis.asyncapi.styling import STYLE
from ruststream_kinesis.asyncapi.writing import to_json

__all__ = ["page"]

Schema = Mapping[str, Any] | bool

# What may be loaded, should an escape be missing somewhere: the page's own style.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

_CODE = re.compile(r"`([^`\n]+)`")

# Keywords of a schema that bound its values, as a reader knows them.
_BOUNDS = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
    "multipleOf": "multiple of {}",
    "minLength": "at least {} long",
    "maxLength": "at most {} long",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "minProperties": "at least {} entries",
    "maxProperties": "at most {} entries",
    "pattern": "matches {}",
    "contentEncoding": "{}",
}


def page(document: Mapping[str, Any]) -> str:
    """A self-contained page that shows a document, for a browser of any width, light or dark."""
    info = document["info"]
    components = document["components"]
    sections = [
        ("servers", document["servers"], _server),
        ("operations", document["operations"], _operation),
        ("channels", document["channels"], _channel),
        ("messages", components.get("messages", {}), _message),
        ("schemas", components.get("schemas", {}), _schema),
    ]
    used = _operations_by_channel(document)
    shown = "".join(
        f'<section><h2 id="{title}">{title.capitalize()}</h2>'
        + "".join(show(name, each, used) for name, each in entries.items())
        + "</section>"
        for title, entries, show in sections
        if entries
    )
    raw = to_json(dict(document))
    title = f"{escape(info['title'])} {escape(info['version'])}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{title}</title><link rel="icon" href="data:,"><style>{STYLE}</style></head><body>'
        f"<nav>{_contents(sections)}</nav><main><header>"
        f"<h1>{escape(info['title'])} <small>{escape(info['version'])}</small></h1>"
        f"{_prose(info.get('description'))}"
        f'<p class="quiet">AsyncAPI {escape(document["asyncapi"])} · {_download(raw, info["title"])}'
        f"</p></header>{shown}"
        f'<section><h2 id="document">Document</h2><details><summary>The whole document as JSON'
        f"</summary><pre>{escape(raw)}</pre></details></section></main></body></html>\n"
    )


def _operations_by_channel(document: Mapping[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """The operations of each channel: action and name."""
    used: dict[str, list[tuple[str, str]]] = {}
    for name, each in document["operations"].items():
        used.setdefault(_last(each["channel"]["$ref"]), []).append((each["action"], name))
    return used


def _contents(sections: Iterable[tuple[str, Mapping[str, Any], Any]]) -> str:
    told = ""
    for title, entries, _ in sections:
        if entries:
            # A card's anchor begins with what one of them is called: "server-…".
            links = "".join(f"<li>{_link(title[:-1], name)}</li>" for name in entries)
            told += f'<p><a href="#{title}">{title.capitalize()}</a></p><ul>{links}</ul>'
    return told + '<p><a href="#document">Document</a></p>'


def _download(raw: str, title: str) -> str:
    data = base64.b64encode(raw.encode()).decode()
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", title).strip("-.") or "asyncapi"
    return (
        f'<a download="{name}.asyncapi.json" href="data:application/json;base64,{data}">'
        "Download as JSON</a>"
    )


def _server(name: str, server: Mapping[str, Any], _used: object) -> str:
    variables = "".join(
        f"<p><code>{{{escape(each)}}}</code> {_inline(about.get('description', ''))}</p>"
        for each, about in server.get("variables", {}).items()
    )
    address = f"{server['protocol']}://{server['host']}{server.get('pathname', '')}"
    body = f"<p><code>{escape(address)}</code></p>{_prose(server.get('description'))}{variables}"
    return _card("server", name, body)


def _operation(name: str, operation: Mapping[str, Any], _used: object) -> str:
    action = operation["action"]
    way = "from" if action == "receive" else "to"
    messages = _joined(_link("message", _last(each["$ref"])) for each in operation["messages"])
    channel = _link("channel", _last(operation["channel"]["$ref"]))
    title = operation.get("title")
    body = (
        (f"<p class=quiet>Handler <code>{escape(title)}</code></p>" if title else "")
        + (
            f"<p><strong>{_inline(operation['summary'])}</strong></p>"
            if "summary" in operation
            else ""
        )
        + _prose(operation.get("description"))
        + f"<p>{messages} {way} {channel}</p>"
        + _values(operation)
    )
    return _card("operation", name, body, badge=action)


def _channel(
    name: str, channel: Mapping[str, Any], used: Mapping[str, list[tuple[str, str]]]
) -> str:
    messages = _joined(_link("message", each) for each in channel["messages"])
    operations = "".join(
        f"<li>{_badge(action)} {_link('operation', each)}</li>"
        for action, each in used.get(name, ())
    )
    body = (
        f"<p>Stream <code>{escape(channel['address'])}</code></p>"
        f'<ul class="plain">{operations}</ul><p>Messages: {messages}</p>{_values(channel)}'
    )
    return _card("channel", name, body)


def _message(name: str, message: Mapping[str, Any], _used: object) -> str:
    content = message.get("contentType")
    body = (
        (f"<p><code>{escape(content)}</code></p>" if content else "")
        + _prose(message.get("description"))
        + f"<p>Payload: {_type(message['payload'])}</p><p>Headers: {_type(message['headers'])}</p>"
        + _values(message)
    )
    return _card("message", name, body)


def _schema(name: str, schema: Mapping[str, Any], _used: object) -> str:
    required = schema.get("required", ())
    properties = "".join(
        _property(each, inner, needed=each in required)
        for each, inner in schema.get("properties", {}).items()
    )
    kind = "" if properties else f"<p>{_type(schema)}</p>"
    others = schema.get("additionalProperties")
    more = ""
    if properties and others is False:
        more = '<p class="quiet">No other properties.</p>'
    elif properties and others:
        more = f'<p class="quiet">Other properties: {_type(others)}</p>'
    listed = f"<dl>{properties}</dl>" if properties else ""
    body = _prose(schema.get("description")) + kind + listed + more + _examples(schema)
    return _card("schema", name, body)


def _property(name: str, schema: Schema, *, needed: bool) -> str:
    about = schema if isinstance(schema, Mapping) else {}
    notes = '<span class="needed">required</span>' if needed else ""
    if "default" in about:
        notes += f'<span class="quiet">default {_value(about["default"])}</span>'
    return (
        f"<dt><code>{escape(name)}</code> <span>{_type(schema)}</span> {notes}</dt>"
        f"<dd>{_prose(about.get('description'))}{_examples(about)}</dd>"
    )


def _type(schema: Schema) -> str:
    """A schema in a few words, with links to the components that it names."""
    if isinstance(schema, bool):
        return "anything" if schema else "nothing"
    if "$ref" in schema:
        return _link("schema", _last(schema["$ref"]))
    for keyword, between in (("anyOf", " or "), ("oneOf", " or "), ("allOf", " and ")):
        if keyword in schema:
            return between.join(_type(each) for each in schema[keyword])
    if "enum" in schema or "const" in schema:
        return " | ".join(_value(each) for each in schema.get("enum", [schema.get("const")]))
    bounds = [escape(text.format(schema[word])) for word, text in _BOUNDS.items() if word in schema]
    kinds = schema.get("type", "anything")
    kind = " or ".join(kinds) if isinstance(kinds, list) else kinds
    told = escape(kind) + (f" ({escape(schema['format'])})" if "format" in schema else "")
    if kind == "array" and "items" in schema:
        items = schema["items"]
        of = ", ".join(map(_type, items)) if isinstance(items, list) else _type(items)
        told += f" [{of}]" if isinstance(items, list) else f" of {of}"
    elif kind == "object" and schema.get("additionalProperties"):
        told += f" of {_type(schema['additionalProperties'])}"
    return told + (f' <span class="quiet">{", ".join(bounds)}</span>' if bounds else "")


def _examples(schema: Mapping[str, Any]) -> str:
    examples = schema.get("examples")
    if not isinstance(examples, list) or not examples:
        return ""
    word = "Example" if len(examples) == 1 else "Examples"
    return f'<p class="quiet">{word}: {", ".join(map(_value, examples))}</p>'


def _values(entry: Mapping[str, Any]) -> str:
    """What the extension says of an entry."""
    body = entry.get("bindings", {}).get("x-ruststream-kinesis", {})
    told = "".join(f"<li>{escape(name)} {_value(value)}</li>" for name, value in body.items())
    return f'<ul class="values">{told}</ul>' if told else ""


def _value(value: object) -> str:
    text = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
    return f"<code>{escape(text)}</code>"


def _card(kind: str, name: str, body: str, *, badge: str | None = None) -> str:
    mark = "" if badge is None else f"{_badge(badge)} "
    anchor = escape(f"{kind}-{name}")
    return (
        f'<article id="{anchor}"><h3>{mark}<a class="self" href="#{anchor}">{escape(name)}</a></h3>'
        f"{body}</article>"
    )


def _badge(action: str) -> str:
    return f'<span class="badge {escape(action)}">{escape(action)}</span>'


def _link(kind: str, name: str) -> str:
    return f'<a href="#{escape(f"{kind}-{name}")}">{escape(name)}</a>'


def _last(reference: str) -> str:
    return reference.rpartition("/")[2]


def _joined(links: Iterable[str]) -> str:
    return ", ".join(links)


def _inline(text: str) -> str:
    return _CODE.sub(r"<code>\1</code>", escape(text))


def _prose(text: str | None) -> str:
    """Paragraphs; of CommonMark no more than code spans, and lines stay as they are."""
    parts = (text or "").strip().split("\n\n")
    return "".join(f'<p class="prose">{_inline(part)}</p>' for part in parts if part.strip())
