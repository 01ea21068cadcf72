"""An event as receivers see it, and its signature."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

import pytest

from tests.hooks.world import NAME, make_hook
from treedbd import __version__
from treedbd.hooks.message import Message, headers_of, make_test, messages_of
from treedbd.store.changelog import Writer, encode, print_event, print_events
from treedbd.store.engine import LogEntry
from treedbd.store.hooks import KINDS, Kind
from treedbd.tree.edit import make_put
from treedbd.tree.types import Place

ADA = Writer("ada")
EVENTS = (
    print_event(("orders", "a"), None, b'{"n":1}'),
    print_event(("orders", "b"), b"1", None, ["after"]),
    print_event(("orders", "c"), b"[1,2.5]", None),
    print_event(("others", "a"), None, b"1"),
)


def entry_of(*events: bytes, writer: Writer = ADA) -> LogEntry:
    edit = make_put(Place(("orders",)), {"n": 1})
    content = encode(edit, 1_700_000_000_123, writer=writer, events=print_events(events))
    return LogEntry(7, b"id", content)


def messages(*kinds: Kind, **options: Any) -> list[Message]:
    hook = make_hook(kinds=frozenset(kinds or KINDS))
    return list(messages_of(hook, NAME, entry_of(*EVENTS, **options)))


def test_an_event_says_what_happened_where_when_and_by_whom() -> None:
    created, updated, deleted = messages()
    assert json.loads(created.body) == {
        "id": "p/a/7/0-6964",
        "hook": "orders",
        "project": "p",
        "database": "a",
        "kind": "created",
        "path": "/orders/a",
        "captures": {"id": "a"},
        "before": None,
        "after": {"n": 1},
        "seq": 7,
        "time": "2023-11-14T22:13:20.123Z",
        "uid": "ada",
        "admin": False,
    }
    cut = json.loads(updated.body)
    assert (cut["kind"], cut["before"], cut["after"], cut["cut"]) == ("updated", 1, None, ["after"])
    assert json.loads(deleted.body)["before"] == [1, 2.5]
    assert [each.order for each in messages()] == [(7, 0), (7, 1), (7, 2)]


def test_a_hook_gets_the_kinds_that_it_is_for_with_the_same_ids() -> None:
    (deleted,) = messages("deleted")
    assert deleted.event_id == "p/a/7/2-6964"
    (by_admin,) = messages("created", writer=Writer(is_admin=True))
    said = json.loads(by_admin.body)
    assert (said["uid"], said["admin"]) == (None, True)


def test_another_write_of_the_same_number_has_other_ids() -> None:
    entry = entry_of(*EVENTS)
    found = set[str]()
    for op_id in (b"a" * 16, b"b" * 16):  # as after a database was deleted, or restored
        again = LogEntry(entry.sequence, op_id, entry.content)
        found |= {each.event_id for each in messages_of(make_hook(), NAME, again)}
    assert len(found) == 2 * len(messages())


def test_an_entry_that_is_damaged_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"Not valid JSON|not the events"):
        list(messages_of(make_hook(), NAME, LogEntry(1, b"", b'{"events":"[{}]"}')))


def test_what_is_sent_is_signed_by_each_secret_with_its_time() -> None:
    message = messages()[0]
    headers = dict(headers_of(message, ("one", "two"), 1_700_000_000_999, 3))
    signed = b"1700000000." + message.body
    signatures = [
        "v1=" + hmac.new(secret, signed, hashlib.sha256).hexdigest() for secret in (b"one", b"two")
    ]
    assert headers == {
        "Content-Type": "application/json",
        "User-Agent": f"treedb/{__version__}",
        "X-TreeDB-Event": "created",
        "X-TreeDB-Event-Id": "p/a/7/0-6964",
        "X-TreeDB-Timestamp": "1700000000",
        "X-TreeDB-Attempt": "3",
        "X-TreeDB-Signature": ",".join(signatures),
    }
    assert "X-TreeDB-Signature" not in dict(headers_of(message, (), 0, 1))


def test_a_trial_has_the_form_of_an_event_and_a_kind_of_its_own() -> None:
    trial = make_test(make_hook(), NAME, 0, "x")
    said = json.loads(trial.body)
    assert said.keys() == json.loads(messages()[0].body).keys()
    assert (said["kind"], said["path"], said["captures"]) == (
        "test",
        "/orders/test",
        {"id": "test"},
    )
    assert said["id"] == trial.event_id == "p/a/test/x"
