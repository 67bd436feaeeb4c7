"""The document: server, channels, operations, and the components that they refer to."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from ruststream_kinesis.asyncapi.messages import Messages, binding
from ruststream_kinesis.publisher import KinesisPublish
from ruststream_kinesis.router import Subscriber
from ruststream_kinesis.stream import StreamRef

if TYPE_CHECKING:
    from ruststream_kinesis.app import RustStream
    from ruststream_kinesis.clients import ClientSettings

__all__ = ["document"]

Document = dict[str, Any]


def document(app: RustStream) -> Document:
    """The AsyncAPI 3.0 document of an application, as JSON has it.

    It is made from what is declared: nothing is connected, no environment is looked at, and the same
    declarations make the same document. What a handler publishes by a `KinesisPublisher` is not
    declared anywhere, and is not in it.
    """
    messages = Messages(app.subscribers)
    channels = _Channels()
    operations: dict[str, Document] = {}
    for name, each in _named(app.subscribers):
        received = messages.received(each, name)
        stream = channels.reading(each, received)
        operations[f"receive_{name}"] = _receive(each, stream, received)
        reply, dead_letter = each.policies.reply, each.retry.dead_letter
        replies = messages.replies(each, name)
        if reply is not None and reply.to is not None and replies:
            target = channels.writing(StreamRef.parse(reply.to), replies)
            operations[f"reply_{name}"] = _reply(each, reply, target, replies)
        if dead_letter is not None:
            letters = messages.dead_letters(each, name, received)
            target = channels.writing(dead_letter, letters)
            operations[f"dead_letter_{name}"] = _dead_letter(each, target, letters)
    components = {"messages": messages.components, "schemas": messages.schemas}
    made = {
        "asyncapi": "3.0.0",
        "info": {
            "title": app.title,
            "version": app.version,
            **_if("description", app.description),
        },
        "servers": {"kinesis": _server(app.broker.settings)},
        "channels": channels.done(),
        "operations": operations,
        "components": {name: each for name, each in components.items() if each},
    }
    # As JSON has it: a default may be a value of any type, and nothing is shared with another document.
    plain: Document = msgspec.json.decode(msgspec.json.encode(made))
    return plain


def _if(name: str, value: object) -> Document:
    """The entry, where there is something to say."""
    return {} if value is None or value == "" else {name: value}


def _named(subscribers: Iterable[Subscriber]) -> Iterable[tuple[str, Subscriber]]:
    """A name for each subscription: its stream, and its group where it has one.

    No other subscription changes it, but one that was declared before and is called alike.
    """
    taken: set[str] = set()
    for each in subscribers:
        words = (each.stream.name, *(() if each.group is None else (each.group,)))
        yield _free(re.sub(r"[^a-zA-Z0-9._-]", "_", "_".join(words)), taken), each


def _free(name: str, taken: set[str]) -> str:
    """The name, with a number where it is taken; it is taken then."""
    numbered = (f"{name}_{number}" for number in itertools.count(2))
    found = next(each for each in itertools.chain([name], numbered) if each not in taken)
    taken.add(found)
    return found


def _server(settings: ClientSettings) -> Document:
    """Host and port that the broker was given, or those of its region; never credentials."""
    server: Document = {"protocol": "kinesis", "description": "Amazon Kinesis Data Streams"}
    if settings.endpoint_url is not None:
        url = urlsplit(settings.endpoint_url)
        # Without what stands before an `@`.
        host = url.netloc.rpartition("@")[2]
        path = url.path.rstrip("/")
        return {"host": host, **_if("pathname", path), **server}
    region = settings.region or getattr(settings.config, "region_name", None)
    if region is None:
        variable = {"description": "AWS region: that of the environment or profile it runs in."}
        server["variables"] = {"region": variable}
    # The partition of China has a domain of its own.
    domain = "amazonaws.com.cn" if (region or "").startswith("cn-") else "amazonaws.com"
    return {"host": f"kinesis.{region or '{region}'}.{domain}", **server}


class _Channels:
    """One channel for each stream that is read or written."""

    def __init__(self) -> None:
        self._channels: dict[str, Document] = {}
        self._names: dict[StreamRef, str] = {}
        self._taken: set[str] = set()

    def reading(self, subscriber: Subscriber, messages: list[str]) -> str:
        """The channel of a subscription, which carries these messages."""
        stream = subscriber.stream
        name = self.writing(stream.ref, messages)
        body = self._channels[name]["bindings"]["x-ruststream-kinesis"]
        # Of several subscriptions: the shortest pause, and the shards of the first that creates it.
        pause = _milliseconds(stream.poll_interval)
        body["pollIntervalMs"] = min(pause, body.get("pollIntervalMs", pause))
        if stream.create_if_missing is not None:
            body.setdefault("shardCount", stream.create_if_missing)
        return name

    def writing(self, ref: StreamRef, messages: list[str]) -> str:
        """The channel of a stream, which carries these messages."""
        if ref not in self._names:
            place = [ref.name, *(each for each in (ref.region, ref.account) if each)]
            # Two streams of different accounts may share a name.
            name = ref.name if ref.name not in self._taken else ".".join(place)
            self._names[ref] = name = _free(name, self._taken)
            self._channels[name] = {
                "address": str(ref),
                "servers": [{"$ref": "#/servers/kinesis"}],
                "messages": {},
                **binding({"stream": ref.name, **_if("streamArn", ref.arn)}),
            }
        name = self._names[ref]
        self._channels[name]["messages"] |= {
            each: {"$ref": f"#/components/messages/{each}"} for each in messages
        }
        return name

    def done(self) -> dict[str, Document]:
        return self._channels


def _operation(action: str, channel: str, messages: list[str]) -> Document:
    return {
        "action": action,
        "channel": {"$ref": f"#/channels/{channel}"},
        "messages": [{"$ref": f"#/channels/{channel}/messages/{each}"} for each in messages],
    }


def _receive(subscriber: Subscriber, channel: str, messages: list[str]) -> Document:
    stream, retry, policies = subscriber.stream, subscriber.retry, subscriber.policies
    first, _, rest = subscriber.handler.doc.partition("\n\n")
    batched = subscriber.batch is not None
    body = {
        **_if("group", subscriber.group),
        "workers": subscriber.workers,
        **_if("batch", subscriber.batch),
        **({"batchWindowMs": _milliseconds(subscriber.batch_window)} if batched else {}),
        "pollIntervalMs": _milliseconds(stream.poll_interval),
        "readIntervalMs": _milliseconds(stream.read_interval),
        **({} if subscriber.start_at is None else {"startAt": str(subscriber.start_at)}),
        **_if("maxAttempts", retry.max_attempts),
        **({} if retry.dead_letter is None else {"deadLetter": str(retry.dead_letter)}),
        **_if("deferred", retry.deferred if retry.deferred != "hold" else None),
        "onError": _policy(policies.on_error),
        "onDecodeError": _policy(policies.on_decode_error),
    }
    description = "\n\n".join(part for part in (rest.strip(), _attempts(subscriber)) if part)
    return {
        **_operation("receive", channel, messages),
        "title": subscriber.handler.name.rpartition("<locals>.")[2],
        **_if("summary", " ".join(first.split())),
        **_if("description", description),
        **binding(body),
    }


def _attempts(subscriber: Subscriber) -> str:
    """What becomes of a record that is to be tried again; it needs no operation of its own."""
    cap, dead_letter = subscriber.retry.cap, subscriber.retry.dead_letter
    if cap is None:
        return ""
    end = "is dropped" if dead_letter is None else f"goes to `{dead_letter}`"
    if cap == 1:
        return f"A record that is to be retried {end}."
    return (
        "A record that is to be retried comes again as a copy at the end of the stream; after "
        f"{cap} deliveries it {end}."
    )


def _reply(
    subscriber: Subscriber, policy: KinesisPublish, channel: str, messages: list[str]
) -> Document:
    key, batching = policy.partition_key, policy.batching
    body = {
        **({"partitionKeyFunction": _called(key)} if callable(key) else {}),
        **_if("partitionKey", key if isinstance(key, str) else None),
        **({} if batching is None else {"batch": batching.batch}),
        **({} if batching is None else {"lingerMs": _milliseconds(policy.linger)}),
        **({"aggregate": True} if policy.aggregate else {}),
    }
    return {
        **_operation("send", channel, messages),
        "summary": f"What the handler of {_source(subscriber)} returns.",
        **(binding(body) if body else {}),
    }


def _dead_letter(subscriber: Subscriber, channel: str, messages: list[str]) -> Document:
    return {
        **_operation("send", channel, messages),
        "summary": f"Records of {_source(subscriber)} that are given up.",
    }


def _source(subscriber: Subscriber) -> str:
    group = "" if subscriber.group is None else f" (group `{subscriber.group}`)"
    return f"`{subscriber.stream.name}`{group}"


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def _policy(policy: str | Callable[..., Any]) -> str:
    return policy if isinstance(policy, str) else _called(policy)


def _called(function: Callable[..., Any]) -> str:
    """How a function is called; its `repr` would be another one in every process."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__qualname__", type(function).__qualname__))
