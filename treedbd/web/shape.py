"""How an answer is shown: as it is, indented, or not at all.

A read may also be wrapped for a script, be a download, and carry its tag.
"""

from __future__ import annotations

from typing import NamedTuple

from treedbd.store.row import parse_stored
from treedbd.tree import printing, value
from treedbd.tree.canonical import tag
from treedbd.tree.value import Json
from treedbd.web.answer import JSON_TYPE, SCRIPT_TYPE, Header, Reply
from treedbd.web.ask import Ask
from treedbd.web.read import Form
from treedbd.web.send import disposition


class Envelope(NamedTuple):
    """What goes before and behind the JSON of a reply, and the headers that say so."""

    before: bytes
    after: bytes
    headers: tuple[Header, ...]


def json_reply(ask: Ask, json: Json, *headers: Header) -> Reply:
    """Return the reply that shows JSON as `print` asks for it."""
    text = ask.dialect.pretty(json) if ask.print == "pretty" else printing.compact(json)
    return text_reply(ask, text, *headers)


def text_reply(ask: Ask, text: bytes, *headers: Header) -> Reply:
    """Return the reply that shows a text of JSON as it is, or nothing where `print` is silent."""
    if ask.print == "silent":
        return Reply(204, b"", headers)
    return Reply(200, text, (JSON_TYPE, *headers))


def read_reply(ask: Ask, form: Form, body: bytes) -> Reply:
    """Return the reply whose JSON is `body`."""
    tags: tuple[Header, ...] = ()
    if _is_tagged(ask, form):
        json = parse_stored(body)
        present = tag(value.plain(json) if form.is_export else json)
        tags = ((b"ETag", ask.dialect.tag(present)),)
        if ask.condition is not None and ask.condition.matches(present, json is not None):
            return Reply(304, b"", tags)
    if ask.print == "silent":
        return Reply(204, b"", tags)
    if ask.print == "pretty":
        body = ask.dialect.pretty(parse_stored(body))
    before, after, headers = envelope_of(form)
    return Reply(200, before + body + after, (*headers, *tags))


def needs_body(ask: Ask, form: Form) -> bool:
    """Tell whether anything of what is there is shown, be it by its tag alone."""
    return ask.print != "silent" or _is_tagged(ask, form)


def needs_whole(ask: Ask, form: Form) -> bool:
    """Tell whether the reply can be made only of the whole JSON at once."""
    return _is_tagged(ask, form) or ask.print != "compact"


def _is_tagged(ask: Ask, form: Form) -> bool:
    return form.is_plain and (ask.wants_tag or ask.condition is not None)


def envelope_of(form: Form) -> Envelope:
    """Return what goes around the JSON of a form."""
    headers = () if form.download is None else (disposition(form.download),)
    if form.callback is None:
        return Envelope(b"", b"", (JSON_TYPE, *headers))
    return Envelope(b"/**/%s(" % form.callback.encode(), b");", (SCRIPT_TYPE, *headers))
