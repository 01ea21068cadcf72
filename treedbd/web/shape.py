"""How an answer is shown: as it is, indented, or not at all.

A read may also be wrapped for a script, be a download, and carry its tag.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import IO

from twisted.internet.interfaces import IReactorTime
from twisted.protocols.basic import FileSender
from twisted.python.failure import Failure
from twisted.web.server import Request

from treedbd.database.question import TooLarge
from treedbd.tree import printing, value
from treedbd.tree.canonical import MOST_TAGGED_BYTES, tag
from treedbd.tree.value import Json
from treedbd.web.answer import JSON_TYPE, SCRIPT_TYPE, Header, Reply
from treedbd.web.ask import Ask
from treedbd.web.read import Form
from treedbd.web.send import abort, disposition, write_head


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
        json = printing.parse(body)
        present = tag(value.plain(json) if form.is_export else json)
        tags = ((b"ETag", ask.dialect.tag(present)),)
        if ask.condition is not None and ask.condition.matches(present, json is not None):
            return Reply(304, b"", tags)
    if ask.print == "silent":
        return Reply(204, b"", tags)
    if ask.print == "pretty":
        body = ask.dialect.pretty(printing.parse(body))
    before, after, content_type = _wrapping(form)
    return Reply(200, before + body + after, (content_type, *_download(form), *tags))


def needs_whole(ask: Ask, form: Form) -> bool:
    """Tell whether the reply can be made only of the whole JSON at once."""
    return _is_tagged(ask, form) or ask.print != "compact"


def read_whole(file: IO[bytes]) -> bytes:
    """Return what lies in a file; raise `TooLarge` where it is too much to be shaped at once."""
    if file.seek(0, 2) > MOST_TAGGED_BYTES:
        raise TooLarge(
            f"More than {MOST_TAGGED_BYTES} bytes have no tag and are not indented; read a part."
        )
    file.seek(0)
    return file.read()


def send_file(
    request: Request,
    form: Form,
    file: IO[bytes],
    common: tuple[Header, ...],
    clock: IReactorTime,
    deadline: float,
    end: Callable[[], object],
) -> None:
    """Send JSON that lies in a file, at the speed of the client, and cut it off at the deadline.

    `end` is called when the file is closed.
    """
    before, after, content_type = _wrapping(form)
    length = file.seek(0, 2) + len(before) + len(after)
    file.seek(0)
    write_head(request, 200, (content_type, *_download(form), *common), length)
    if request.method == b"HEAD":
        file.close()
        end()
        request.finish()
        return
    request.write(before)
    cut_off = clock.callLater(max(0.0, deadline - clock.seconds()), abort, request)

    def finish(result: object) -> None:
        file.close()
        end()
        if cut_off.active():
            cut_off.cancel()
        if not isinstance(result, Failure):
            request.write(after)
            request.finish()

    FileSender().beginFileTransfer(file, request).addBoth(finish)


def _is_tagged(ask: Ask, form: Form) -> bool:
    return form.is_plain and (ask.wants_tag or ask.condition is not None)


def _wrapping(form: Form) -> tuple[bytes, bytes, Header]:
    if form.callback is None:
        return b"", b"", JSON_TYPE
    return b"/**/%s(" % form.callback.encode(), b");", SCRIPT_TYPE


def _download(form: Form) -> tuple[Header, ...]:
    return () if form.download is None else (disposition(form.download),)
