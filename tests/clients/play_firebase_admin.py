"""Calls every function of the `db` module of `firebase-admin` with a daemon.

It runs under pytest in the environment of the clients, not in treedb's own. Environment variables
describe the daemon: `PLAY_URL` is the `databaseURL` of an open project, `PLAY_EU_URL` another
database of it, and `PLAY_GUARDED_URL` a project whose rules are put here. With `PLAY_SECRET` and
`PLAY_GUARDED_SECRET` tokens are signed with these secrets, as on a server; otherwise
`FIREBASE_DATABASE_EMULATOR_HOST` selects development mode.
"""

from __future__ import annotations

import datetime
import itertools
import json
import os
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import firebase_admin
import google.auth.credentials
import jwt
import pytest
from firebase_admin import credentials, db, exceptions

SECRET = os.environ.get("PLAY_SECRET", "")
GUARDED_SECRET = os.environ.get("PLAY_GUARDED_SECRET", "")
URL = os.environ["PLAY_URL"]
PATIENCE_S = 120
DENIED = r"^Permission denied$"

CLOSED_RULES = {
    "rules": {
        "users": {"$uid": {".read": "auth.uid == $uid", ".write": "auth.uid == $uid"}},
        "news": {
            ".read": True,
            ".write": "auth.uid == 'editor'",
            "$n": {".validate": "newData.isString()"},
        },
    }
}
PEOPLE = {
    "ada": {"age": 36, "name": {"first": "Ada"}, "score": 2.5},
    "alan": {"age": 41, "name": {"first": "Alan"}, "score": 7},
    "grace": {"age": 85, "name": {"first": "Grace"}, "score": 7},
    "kurt": {"age": 71, "name": {"first": "Kurt"}},
}

_apps = itertools.count()
_paths = itertools.count()


class ServiceToken(google.auth.credentials.Credentials):  # type: ignore[misc]
    """Signs a token with the secret of a project whenever the last one has expired."""

    def __init__(self, secret: str) -> None:
        super().__init__()
        self._secret = secret

    def refresh(self, request: object) -> None:
        """Sign a token."""
        issued = datetime.datetime.now(datetime.UTC)
        expires = issued + datetime.timedelta(hours=1)
        self.token = jwt.encode(
            {"admin": True, "iat": issued, "exp": expires}, self._secret, "HS256"
        )
        self.expiry = expires.replace(tzinfo=None)


class Credential(credentials.Base):  # type: ignore[misc]
    """The credential that `initialize_app` expects."""

    def __init__(self, secret: str) -> None:
        self._secret = secret

    def get_credential(self) -> ServiceToken:
        """Return the credential that signs requests."""
        return ServiceToken(self._secret)


def make_app(url: str = URL, secret: str = SECRET, **options: Any) -> firebase_admin.App:
    settings = {"databaseURL": url, **options}
    return firebase_admin.initialize_app(Credential(secret), settings, f"app{next(_apps)}")


def make_guarded_app(**options: Any) -> firebase_admin.App:
    return make_app(os.environ["PLAY_GUARDED_URL"], GUARDED_SECRET, **options)


@pytest.fixture(scope="module")
def app() -> firebase_admin.App:
    return make_app()


@pytest.fixture
def ref(app: firebase_admin.App) -> db.Reference:
    """A reference to a path without a value."""
    return db.reference(f"path{next(_paths)}", app)


@pytest.mark.parametrize(
    "value",
    [
        *(True, 0, -1, 2**53 + 1, 1.5, 1e300, "", 'a "quoted"\\ text\n', "žluťoučký 🐎"),
        *({"a": {"b": [1, 2, {"c": False}]}}, ["x", "y"], {"10": "ten", "9": "nine"}),
    ],
)
def test_a_value_that_was_set_is_read(ref: db.Reference, value: Any) -> None:
    ref.set(value)
    assert ref.get() == value


def test_a_path_without_a_value_is_none(ref: db.Reference) -> None:
    assert ref.get() is None
    assert ref.get(shallow=True) is None
    assert ref.get(etag=True) == (None, "null_etag")


def test_keys_may_be_in_any_script(ref: db.Reference) -> None:
    ref.child("čaj/☕ + 50%").set("hot")
    assert ref.get() == {"čaj": {"☕ + 50%": "hot"}}
    assert ref.child("čaj").child("☕ + 50%").get() == "hot"


def test_references_have_parents_and_children(ref: db.Reference) -> None:
    assert ref.child("a/b").key == "b"
    assert ref.child("a/b").parent.path == ref.child("a").path
    ref.child("a/b").set(1)
    assert ref.child("a").get() == {"b": 1}


def test_a_shallow_get_shows_the_keys(ref: db.Reference) -> None:
    ref.set(PEOPLE)
    assert ref.get(shallow=True) == dict.fromkeys(PEOPLE, True)
    assert ref.child("ada/age").get(shallow=True) == 36


def test_a_tag_shows_whether_a_value_changed(ref: db.Reference) -> None:
    ref.set({"a": 1})
    value, etag = ref.get(etag=True)
    assert value == {"a": 1}
    assert ref.get_if_changed(etag) == (False, None, None)
    ref.child("a").set(2)
    is_changed, value, newer = ref.get_if_changed(etag)
    assert (is_changed, value) == (True, {"a": 2})
    assert newer != etag
    ref.delete()
    assert ref.get_if_changed(newer) == (True, None, "null_etag")
    assert ref.get_if_changed("null_etag") == (False, None, None)


def test_a_value_is_set_only_if_it_is_unchanged(ref: db.Reference) -> None:
    is_set, value, etag = ref.set_if_unchanged("null_etag", {"a": 1})
    assert (is_set, value) == (True, {"a": 1})
    assert etag == ref.get(etag=True)[1]
    assert ref.set_if_unchanged("null_etag", "late") == (False, {"a": 1}, etag)
    assert ref.set_if_unchanged(etag, 2)[0] is True
    is_set, value, newer = ref.set_if_unchanged(etag, 3)
    assert (is_set, value) == (False, 2)
    assert ref.set_if_unchanged(newer, 3)[0] is True
    assert ref.get() == 3
    ref.delete()
    assert ref.set_if_unchanged(newer, 4) == (False, None, "null_etag")


def test_an_update_changes_deep_paths_and_removes(ref: db.Reference) -> None:
    ref.set(PEOPLE)
    ref.update({"ada/age": 37, "alan/name/last": "Turing", "kurt": None, "new/deep/key": [1]})
    expected = {key: dict(person) for key, person in PEOPLE.items() if key != "kurt"}
    expected["ada"]["age"] = 37
    expected["alan"]["name"] = {"first": "Alan", "last": "Turing"}
    assert ref.get() == {**expected, "new": {"deep": {"key": [1]}}}


def test_server_values_are_stored_resolved(ref: db.Reference) -> None:
    ref.set({"at": {".sv": "timestamp"}, "count": 1})
    ref.update({"count": {".sv": {"increment": 41}}})
    stored = ref.get()
    now = datetime.datetime.now().timestamp() * 1000
    assert stored["count"] == 42
    assert abs(stored["at"] - now) < 60_000


def test_pushed_children_are_in_order(ref: db.Reference) -> None:
    pushed = [ref.push({"at": at}) for at in range(20)]
    keys = [reference.key for reference in pushed]
    assert keys == sorted(keys)
    assert {len(key) for key in keys} == {20}
    assert list(ref.order_by_key().get().items()) == [
        (key, {"at": at}) for at, key in enumerate(keys)
    ]
    assert ref.push().get() == ""


def test_a_delete_removes_empty_parents(ref: db.Reference) -> None:
    ref.child("a/b/c").set(1)
    ref.child("a/b/c").delete()
    assert ref.get() is None
    ref.delete()


def test_a_transaction_starts_from_nothing(ref: db.Reference) -> None:
    seen: list[Any] = []

    def add(value: Any) -> int:
        seen.append(value)
        return (value or 0) + 1

    assert ref.transaction(add) == 1
    assert ref.transaction(add) == 2
    assert seen == [None, 1]


def test_a_transaction_that_raises_changes_nothing(ref: db.Reference) -> None:
    ref.set("kept")

    def give_up(value: Any) -> Any:
        raise LookupError(value)

    with pytest.raises(LookupError, match="kept"):
        ref.transaction(give_up)
    assert ref.get() == "kept"


def in_threads(work: Callable[[int], None], count: int) -> None:
    """Do work in `count` threads at the same time; raise the first error."""
    errors: list[Exception] = []
    barrier = threading.Barrier(count)

    def run(number: int) -> None:
        try:
            barrier.wait(PATIENCE_S)
            work(number)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def test_contended_transactions_lose_nothing(ref: db.Reference) -> None:
    writers, rounds = 5, 12
    attempts = itertools.count()

    def work(number: int) -> None:
        own_ref = db.reference(ref.path, make_app())

        def add(value: Any) -> Any:
            next(attempts)
            counted = value or {"sum": 0}
            by = f"by{number}"
            return {**counted, "sum": counted["sum"] + 1, by: counted.get(by, 0) + 1}

        for _ in range(rounds):
            while True:
                try:
                    own_ref.transaction(add)
                    break
                except db.TransactionAbortedError:
                    continue

    in_threads(work, writers)
    assert ref.get() == {
        "sum": writers * rounds,
        **{f"by{number}": rounds for number in range(writers)},
    }
    assert next(attempts) > writers * rounds, "No transaction conflicted with another."


@pytest.fixture(scope="module")
def people(app: firebase_admin.App) -> db.Reference:
    reference = db.reference("people", app)
    reference.set(PEOPLE)
    return reference


MakeQuery = Callable[[db.Reference], db.Query]


@pytest.mark.parametrize(
    ("make_query", "expected"),
    [
        (lambda ref: ref.order_by_child("age"), ["ada", "alan", "kurt", "grace"]),
        (lambda ref: ref.order_by_child("name/first"), ["ada", "alan", "grace", "kurt"]),
        (lambda ref: ref.order_by_child("score"), ["kurt", "ada", "alan", "grace"]),
        (lambda ref: ref.order_by_child("age").limit_to_first(2), ["ada", "alan"]),
        (lambda ref: ref.order_by_child("age").limit_to_last(2), ["kurt", "grace"]),
        (lambda ref: ref.order_by_child("age").start_at(41), ["alan", "kurt", "grace"]),
        (lambda ref: ref.order_by_child("age").end_at(41), ["ada", "alan"]),
        (lambda ref: ref.order_by_child("age").start_at(40).end_at(80), ["alan", "kurt"]),
        (lambda ref: ref.order_by_child("score").equal_to(7), ["alan", "grace"]),
        (lambda ref: ref.order_by_child("name/first").equal_to("Ada"), ["ada"]),
        (lambda ref: ref.order_by_child("age").equal_to(-1), []),
        (lambda ref: ref.order_by_key(), ["ada", "alan", "grace", "kurt"]),
        (lambda ref: ref.order_by_key().start_at("alan").limit_to_first(2), ["alan", "grace"]),
        (lambda ref: ref.order_by_key().end_at("b"), ["ada", "alan"]),
        (lambda ref: ref.order_by_key().equal_to("kurt"), ["kurt"]),
        (lambda ref: ref.order_by_key().limit_to_last(1), ["kurt"]),
    ],
)
def test_queries_select_and_order(
    people: db.Reference, make_query: MakeQuery, expected: list[str]
) -> None:
    found = make_query(people).get()
    assert list((found or {}).items()) == [(key, PEOPLE[key]) for key in expected]


def test_queries_by_value_order_numbers_before_text(ref: db.Reference) -> None:
    ref.set({"a": "text", "b": 3, "c": -1.5, "d": True, "e": 20})
    assert list(ref.order_by_value().get()) == ["d", "c", "b", "e", "a"]
    assert list(ref.order_by_value().start_at(3).limit_to_first(2).get()) == ["b", "e"]
    assert list(ref.order_by_value().equal_to("text").get()) == ["a"]


def test_another_database_is_another_tree(app: firebase_admin.App, ref: db.Reference) -> None:
    other = db.reference(ref.path, app, os.environ["PLAY_EU_URL"])
    ref.set("here")
    other.set("there")
    assert (ref.get(), other.get()) == ("here", "there")


def test_invalid_data_is_refused_with_a_reason(ref: db.Reference) -> None:
    with pytest.raises(exceptions.InvalidArgumentError, match="key") as caught:
        ref.update({"a$b": 1})
    assert caught.value.http_response.json().keys() == {"error"}


@pytest.fixture(scope="module")
def admin() -> firebase_admin.App:
    """An admin of the guarded project; its rules are put by REST."""
    app = make_guarded_app()
    client = db.reference("/", app)._client
    path = "/.settings/rules.json"
    broken = {"rules": {".read": "auth.uid = 1"}}
    with pytest.raises(exceptions.InvalidArgumentError, match=r"^\d+:\d+: .+\n$"):
        client.request("put", path, json=broken)
    text = json.dumps(CLOSED_RULES, indent=1)
    assert client.body("put", path, data=text, params="dryRun=true") == {"status": "ok"}
    assert client.request("get", path).text != text
    assert client.body("put", path, data=text) == {"status": "ok"}
    assert client.request("get", path).text == text
    assert client.body("get", path, params="format=strict") == CLOSED_RULES
    db.reference("/", app).set({"users": {"ada": {"a": 1}}, "news": {"n1": "new"}})
    return app


def test_rules_apply_to_an_override_of_auth(admin: firebase_admin.App) -> None:
    ada = make_guarded_app(databaseAuthVariableOverride={"uid": "ada", "token": {"x": "a b"}})
    own = db.reference("users/ada", ada)
    own.child("a").set(2)
    assert own.transaction(lambda value: {**value, "b": 3}) == {"a": 2, "b": 3}
    assert own.get() == {"a": 2, "b": 3}
    assert db.reference("news", ada).get() == {"n1": "new"}
    other = db.reference("users/alan", ada)
    attempts: list[Callable[[], Any]] = [
        *(other.get, lambda: other.set(1), lambda: other.update({"a": 1}), other.push),
        *(other.delete, lambda: other.transaction(lambda value: 1)),
        *(other.order_by_key().get, lambda: other.listen(print)),
    ]
    for attempt in attempts:
        with pytest.raises(exceptions.UnauthenticatedError, match=DENIED):
            attempt()


def test_an_override_by_none_is_an_anonymous_caller(admin: firebase_admin.App) -> None:
    anonymous = make_guarded_app(databaseAuthVariableOverride=None)
    assert db.reference("news/n1", anonymous).get() == "new"
    with pytest.raises(exceptions.UnauthenticatedError, match=DENIED):
        db.reference("users/ada", anonymous).get()


def test_validation_applies_to_all_but_admins(admin: firebase_admin.App) -> None:
    db.reference("news/n2", admin).set(5)
    assert db.reference("news/n2", admin).get() == 5
    editor = make_guarded_app(databaseAuthVariableOverride={"uid": "editor"})
    with pytest.raises(exceptions.UnauthenticatedError, match=DENIED):
        db.reference("news/n3", editor).set(5)
    db.reference("news/n3", editor).set("text")


if SECRET:

    class ForgedToken(ServiceToken):
        """Signs with another secret."""

        def refresh(self, request: object) -> None:
            """Sign a token."""
            self.token = jwt.encode({"admin": True}, self._secret[::-1], "HS256")

    class Forged(Credential):
        """Signs forged tokens."""

        def get_credential(self) -> ForgedToken:
            """Return the credential that forges tokens."""
            return ForgedToken(self._secret)

    def test_a_forged_token_is_refused() -> None:
        app = firebase_admin.initialize_app(Forged(SECRET), {"databaseURL": URL}, "forged")
        with pytest.raises(exceptions.UnauthenticatedError, match="signature"):
            db.reference("a", app).get()

    def test_the_databases_are_listed(app: firebase_admin.App) -> None:
        client = db.reference("/", app)._client
        db.reference("/", app, os.environ["PLAY_EU_URL"]).child("a").set(1)
        names = {entry["name"] for entry in client.body("get", "/.inspect/databases.json")}
        assert names == {"shop", "eu--shop"}


class ListenerReplica:
    """A copy of a value, kept up to date by the events of `listen`."""

    def __init__(self) -> None:
        self.value: Any = None
        self.seen: list[tuple[str, str]] = []
        self.changed: queue.Queue[None] = queue.Queue()

    def apply(self, event: db.Event) -> None:
        """Apply an event."""
        self.seen.append((event.event_type, event.path))
        keys = [key for key in event.path.split("/") if key]
        if event.event_type == "put":
            self.value = put(self.value, keys, event.data)
        else:
            assert event.event_type == "patch"
            for key, data in event.data.items():
                self.value = put(self.value, [*keys, *key.split("/")], data)
        self.changed.put(None)

    def await_value(self, ref: db.Reference, value: Any) -> None:
        """Wait until the copy equals `value`, as a read then does."""
        while self.value != value:
            self.changed.get(timeout=PATIENCE_S)
        assert ref.get() == value


def put(tree: Any, keys: list[str], data: Any) -> Any:
    """Return a tree with `data` at a path; an empty tree is None."""
    if not keys:
        return data
    branch = dict(tree) if isinstance(tree, dict) else {}
    child = put(branch.pop(keys[0], None), keys[1:], data)
    if child is not None:
        branch[keys[0]] = child
    return branch or None


@pytest.fixture
def listen() -> Iterator[Callable[[db.Reference, Callable[[db.Event], None]], None]]:
    """Starts listeners and closes them; a listener notices `close` at its next event only."""
    opened: list[tuple[db.Reference, db.ListenerRegistration]] = []

    def start(ref: db.Reference, apply: Callable[[db.Event], None]) -> None:
        opened.append((ref, ref.listen(apply)))

    yield start
    for ref, registration in opened:
        closing = threading.Thread(target=registration.close)
        closing.start()
        ref.set("the end")
        closing.join(PATIENCE_S)
        assert not closing.is_alive()


def test_a_listener_receives_every_kind_of_write(ref: db.Reference, listen: Any) -> None:
    ref.set({"a": 1})
    replica = ListenerReplica()
    listen(ref, replica.apply)
    replica.await_value(ref, {"a": 1})
    ref.child("b/c").set("x")
    ref.update({"a": None, "b/d": 2})
    pushed = ref.child("list").push("p")
    replica.await_value(ref, {"b": {"c": "x", "d": 2}, "list": {pushed.key: "p"}})
    ref.child("b").delete()
    ref.child("n").transaction(lambda value: (value or 0) + 1)
    replica.await_value(ref, {"list": {pushed.key: "p"}, "n": 1})
    assert replica.seen == [
        *(("put", "/"), ("put", "/b/c"), ("patch", "/"), ("put", f"/list/{pushed.key}")),
        *(("put", "/b"), ("put", "/n")),
    ]
    ref.delete()
    replica.await_value(ref, None)


def test_a_listener_on_an_empty_path_receives_later_writes(ref: db.Reference, listen: Any) -> None:
    replica = ListenerReplica()
    listen(ref, replica.apply)
    ref.parent.update({f"{ref.key}/deep": "čaj\n\n☕"})
    replica.await_value(ref, {"deep": "čaj\n\n☕"})


def test_listeners_keep_up_with_several_writers(ref: db.Reference, listen: Any) -> None:
    replicas = [ListenerReplica() for _ in range(3)]
    for replica in replicas:
        listen(ref, replica.apply)
    writers, rounds = 4, 25

    def write(number: int) -> None:
        own_ref = db.reference(ref.path, make_app())
        for at in range(rounds):
            own_ref.child(f"own/{number}").set({"at": at})
            own_ref.update({f"last/w{number}": at, "shared/last": f"{number} {at}"})
            own_ref.child("log").push({"by": number, "at": at})
            if at % 5 == 4:
                own_ref.child(f"own/{number}").delete()

    in_threads(write, writers)
    ref.child("done").set(True)
    final = ref.get()
    assert len(final["log"]) == writers * rounds
    for replica in replicas:
        replica.await_value(ref, final)


def test_a_listener_on_a_child_receives_only_its_changes(ref: db.Reference, listen: Any) -> None:
    part, replica = ref.child("part"), ListenerReplica()
    listen(part, replica.apply)
    replica.changed.get(timeout=PATIENCE_S)
    ref.child("other").set(1)
    ref.update({"other": 2, "part/a": 1})
    replica.await_value(part, {"a": 1})
    assert replica.seen == [("put", "/"), ("patch", "/")]
