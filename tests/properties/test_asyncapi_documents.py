"""Whatever an application declares, its document is valid, and the same each time."""

from __future__ import annotations

import contextlib
import types
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from ruststream_kinesis import KinesisBroker, KinesisPublish, Outcome, Router, RustStream
from ruststream_kinesis.asyncapi import page, to_json
from ruststream_kinesis.errors import ConfigurationError
from tests.support.documents import check_document

# Few names of few letters, so that they collide: with each other, with those of messages and with
# the document's own.
NAMES = ["a", "a_b", "b", "a.b", "KinesisHeaders", "a_message", "a_2", "A"]
FIELDS = st.sampled_from([int, str, bytes, float, bool, None, Any, list[int], tuple[int, str]])

classes = st.builds(
    lambda name, fields, tag: msgspec.defstruct(
        name, [(f"f{n}", kind) for n, kind in enumerate(fields)], tag=tag, module="m"
    ),
    st.sampled_from(["A", "a_message", "KinesisHeaders", "B"]),
    st.lists(FIELDS, max_size=3),
    st.uuids().map(str),
)
kinds = st.recursive(
    FIELDS | classes,
    lambda inner: st.one_of(
        inner.map(lambda kind: types.GenericAlias(list, (kind,))),
        inner.map(lambda kind: types.GenericAlias(dict, (str, kind))),
        st.lists(classes, min_size=2, max_size=3, unique=True).map(
            lambda some: some[0] | some[1] | None
        ),
    ),
    max_leaves=4,
)


@st.composite
def subscriptions(draw: st.DrawFn) -> tuple[str, dict[str, Any], Any, Any, str]:
    name = st.sampled_from(NAMES)
    options = {
        "group": draw(st.none() | st.sampled_from(["a", "b", "a b", "ä", "a_b"])),
        "workers": draw(st.integers(1, 3)),
        "max_attempts": draw(st.none() | st.integers(1, 3)),
        "dead_letter": draw(st.none() | name),
        "publish": draw(st.none() | st.builds(KinesisPublish, to=name, partition_key=name)),
    }
    returns = None if options["publish"] is None else draw(kinds | st.just(Outcome))
    return draw(name), options, draw(kinds), returns, draw(st.text(max_size=20))


@settings(max_examples=20, deadline=None)
@given(st.lists(subscriptions(), max_size=6), st.booleans())
def test_any_application_has_a_valid_document_and_a_page(declared, routed):
    app = RustStream(KinesisBroker(), title="t", version="1")
    router = Router() if routed else app
    names = 0
    for stream, options, takes, returns, doc in declared:

        def handle(value):
            raise NotImplementedError

        handle.__annotations__ = {"value": takes, "return": returns}
        handle.__doc__ = doc.encode(errors="replace").decode()
        # Twice the same subscription, or a dead letter stream that is the stream itself.
        with contextlib.suppress(ConfigurationError):
            router.subscriber(stream, **options)(handle)
            names += 1
    if routed:
        app.include(router)
    document = app.asyncapi()

    check_document(document)
    operations = document["operations"].values()
    assert sum(each["action"] == "receive" for each in operations) == names
    assert to_json(app.asyncapi()) == to_json(document)
    assert "<script" not in page(document)
