"""The page of a document: what a browser makes of it."""

from __future__ import annotations

import base64
import re
from html import escape
from html.parser import HTMLParser
from typing import Any, Literal

import msgspec
import pytest

from examples.orders import app as orders
from ruststream_kinesis import KinesisBroker, KinesisPublish, RustStream
from ruststream_kinesis.asyncapi import page, to_json
from tests.support.browser import dom_of

EVIL = "</p><script>alert(1)</script><img src=x onerror='alert(2)'>\"><b>"

# Looks at the page from outside: its own policy lets no script run within.
LOOK = """<!doctype html><body><iframe width="{width}" height="800" srcdoc="{page}"></iframe><script>
onload = () => {{
  const its = document.querySelector("iframe").contentDocument;
  const links = [...its.querySelectorAll('a[href^="#"]')].map(a => a.getAttribute("href").slice(1));
  document.body.textContent = "FOUND" + btoa(JSON.stringify({{
    beyond: its.documentElement.scrollWidth - its.documentElement.clientWidth,
    tags: [...new Set([...its.querySelectorAll("*")].map(e => e.localName))],
    dead: links.filter(id => !its.getElementById(id)),
    links: links.length,
    title: its.querySelector("h1").textContent,
    summary: its.querySelector("article strong").textContent,
    badge: getComputedStyle(its.querySelector(".receive")).backgroundColor,
    download: atob(its.querySelector("a[download]").href.split(",")[1]),
  }})) + "END";
}};
</script></body>"""


class Order(msgspec.Struct):
    kind: Literal["<script>alert(3)</script>"]
    note: str = EVIL
    a_field_with_a_name_that_is_as_long_as_names_get_where_people_like_them_to_say_it_all: int = 0


Order.__doc__ = EVIL


class Evil:
    content_type = EVIL

    def encode(self, value: Any) -> bytes:
        raise NotImplementedError

    def decoder(self, kind: Any) -> Any:
        return lambda _: kind


def evil() -> RustStream:
    broker = KinesisBroker(endpoint_url="http://<script>alert(4)<//'\"")
    app = RustStream(broker, title=EVIL, version=EVIL, description=EVIL)

    def handle(order: Order) -> Order:
        raise NotImplementedError

    handle.__doc__ = f"{EVIL} `{EVIL}`\n\n{EVIL}"
    handle.__qualname__ = EVIL
    publish = KinesisPublish(to="x" * 128, partition_key=EVIL)
    app.subscriber("orders", group="<b>", publish=publish, dead_letter="y")(handle)
    app.subscriber("others", codec=Evil(), publish="y")(handle)
    return app


class _Tags(HTMLParser):
    """The tags of a page as they are nested, and whether each is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("app", [orders, evil()], ids=["orders", "evil"])
def test_a_page_is_well_formed_and_holds_no_tag_but_its_own(app):
    tags = _Tags()
    tags.feed(page(app.asyncapi()))

    assert tags.open == []
    assert not {"script", "img", "b"} & tags.seen


def test_a_page_needs_nothing_from_elsewhere():
    text = page(orders.asyncapi())

    assert re.findall(r"(?:https?:)?//\w", text.replace("kinesis://", "")) == []
    assert "default-src &#x27;none&#x27;" in text


def test_everything_that_is_declared_is_on_the_page():
    text = page(orders.asyncapi())

    for part in (
        "Confirms the orders that make sense.",
        "by_customer",
        "unit_cents",
        "Confirms one",
    ):
        assert part in text


def test_a_browser_shows_it_on_a_phone_and_runs_nothing_of_what_was_declared(tmp_path):
    document = evil().asyncapi()
    text = escape(page(document))
    (tmp_path / "look.html").write_text(LOOK.format(page=text, width=360))
    dom = dom_of((tmp_path / "look.html").as_uri(), tmp_path / "profile")

    found = msgspec.json.decode(base64.b64decode(dom.split("FOUND")[1].split("END")[0]))
    assert found["beyond"] == 0
    assert not {"script", "img", "b"} & set(found["tags"])
    assert found["links"] > 20
    assert found["dead"] == []
    assert found["title"] == f"{EVIL} {EVIL}"
    assert EVIL in found["summary"]
    assert found["badge"] == "rgb(15, 107, 58)"
    assert found["download"] == to_json(document)
