"""Plays every call of the `db` module of `firebase-admin` against a daemon.

Runs under pytest in the client environment, not in treedb's own. Of the daemon it knows what the
environment variables say: `PLAY_URL` is the `databaseURL` of an open project, `PLAY_GUARDED_URL`
that of one whose rules are to be set, `PLAY_EU_URL` another database of the open one. With
`PLAY_SECRET` and `PLAY_GUARDED_SECRET` tokens are signed with these secrets, as a server would;
without, `FIREBASE_DATABASE_EMULATOR_HOST` sends the client to development mode.
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
PATIENCE_S = 30
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
_places = itertools.count()


class ServiceToken(google.auth.credentials.Credentials):  # type: ignore[misc]
    """Signs a token of an hour with the secret of a project, whenever the last one is over."""

    def __init__(self, secret: str) -> None:
        super().__init__()
        self._secret = secret

    def refresh(self, request: object) -> None:
        """Sign one."""
        issued = datetime.datetime.now(datetime.UTC)
        expires = issued + datetime.timedelta(hours=1)
        self.token = jwt.encode(
            {"admin": True, "iat": issued, "exp": expires}, self._secret, "HS256"
        )
        self.expiry = expires.replace(tzinfo=None)


class Credential(credentials.Base):  # type: ignore[misc]
    """What `initialize_app` takes."""

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
def place(app: firebase_admin.App) -> db.Reference:
    """A place where nothing is yet."""
    return db.reference(f"place{next(_places)}", app)


@pytest.mark.parametrize(
    "value",
    [
        *(True, 0, -1, 2**53 + 1, 1.5, 1e300, "", 'a "quoted"\\ text\n', "žluťoučký 🐎"),
        *({"a": {"b": [1, 2, {"c": False}]}}, ["x", "y"], {"10": "ten", "9": "nine"}),
    ],
)
def test_what_is_set_is_got(place: db.Reference, value: Any) -> None:
    place.set(value)
    assert place.get() == value


def test_a_place_without_a_value_is_none(place: db.Reference) -> None:
    assert place.get() is None
    assert place.get(shallow=True) is None
    assert place.get(etag=True) == (None, "null_etag")


def test_keys_of_any_script_are_addressed(place: db.Reference) -> None:
    place.child("čaj/☕ + 50%").set("hot")
    assert place.get() == {"čaj": {"☕ + 50%": "hot"}}
    assert place.child("čaj").child("☕ + 50%").get() == "hot"


def test_references_lead_up_and_down(place: db.Reference) -> None:
    assert place.child("a/b").key == "b"
    assert place.child("a/b").parent.path == place.child("a").path
    place.child("a/b").set(1)
    assert place.child("a").get() == {"b": 1}


def test_a_shallow_get_shows_the_keys(place: db.Reference) -> None:
    place.set(PEOPLE)
    assert place.get(shallow=True) == dict.fromkeys(PEOPLE, True)
    assert place.child("ada/age").get(shallow=True) == 36


def test_a_tag_tells_whether_a_value_changed(place: db.Reference) -> None:
    place.set({"a": 1})
    value, etag = place.get(etag=True)
    assert value == {"a": 1}
    assert place.get_if_changed(etag) == (False, None, None)
    place.child("a").set(2)
    is_changed, value, newer = place.get_if_changed(etag)
    assert (is_changed, value) == (True, {"a": 2})
    assert newer != etag
    place.delete()
    assert place.get_if_changed(newer) == (True, None, "null_etag")
    assert place.get_if_changed("null_etag") == (False, None, None)


def test_a_value_is_set_only_if_nobody_else_has_set_it(place: db.Reference) -> None:
    is_set, value, etag = place.set_if_unchanged("null_etag", {"a": 1})
    assert (is_set, value) == (True, {"a": 1})
    assert etag == place.get(etag=True)[1]
    assert place.set_if_unchanged("null_etag", "late") == (False, {"a": 1}, etag)
    assert place.set_if_unchanged(etag, 2)[0] is True
    is_set, value, newer = place.set_if_unchanged(etag, 3)
    assert (is_set, value) == (False, 2)
    assert place.set_if_unchanged(newer, 3)[0] is True
    assert place.get() == 3
    place.delete()
    assert place.set_if_unchanged(newer, 4) == (False, None, "null_etag")


def test_an_update_reaches_deep_places_and_removes(place: db.Reference) -> None:
    place.set(PEOPLE)
    place.update({"ada/age": 37, "alan/name/last": "Turing", "kurt": None, "new/deep/key": [1]})
    expected = {key: dict(person) for key, person in PEOPLE.items() if key != "kurt"}
    expected["ada"]["age"] = 37
    expected["alan"]["name"] = {"first": "Alan", "last": "Turing"}
    assert place.get() == {**expected, "new": {"deep": {"key": [1]}}}


def test_server_values_are_filled_in(place: db.Reference) -> None:
    place.set({"at": {".sv": "timestamp"}, "count": 1})
    place.update({"count": {".sv": {"increment": 41}}})
    stored = place.get()
    now = datetime.datetime.now().timestamp() * 1000
    assert stored["count"] == 42
    assert abs(stored["at"] - now) < 60_000


def test_pushed_children_stand_in_order(place: db.Reference) -> None:
    pushed = [place.push({"at": at}) for at in range(20)]
    keys = [reference.key for reference in pushed]
    assert keys == sorted(keys)
    assert {len(key) for key in keys} == {20}
    assert list(place.order_by_key().get().items()) == [
        (key, {"at": at}) for at, key in enumerate(keys)
    ]
    assert place.push().get() == ""


def test_what_is_deleted_is_gone_with_its_empty_parents(place: db.Reference) -> None:
    place.child("a/b/c").set(1)
    place.child("a/b/c").delete()
    assert place.get() is None
    place.delete()


def test_a_transaction_starts_from_nothing(place: db.Reference) -> None:
    seen: list[Any] = []

    def add(value: Any) -> int:
        seen.append(value)
        return (value or 0) + 1

    assert place.transaction(add) == 1
    assert place.transaction(add) == 2
    assert seen == [None, 1]


def test_a_transaction_that_raises_changes_nothing(place: db.Reference) -> None:
    place.set("kept")

    def give_up(value: Any) -> Any:
        raise LookupError(value)

    with pytest.raises(LookupError, match="kept"):
        place.transaction(give_up)
    assert place.get() == "kept"


def in_threads(work: Callable[[int], None], count: int) -> None:
    """Do work in as many threads as said, at the same time; raise what went wrong in any."""
    faults: list[Exception] = []
    barrier = threading.Barrier(count)

    def run(number: int) -> None:
        try:
            barrier.wait(PATIENCE_S)
            work(number)
        except Exception as fault:
            faults.append(fault)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    if faults:
        raise faults[0]


def test_contended_transactions_lose_nothing(place: db.Reference) -> None:
    writers, rounds = 5, 12
    attempts = itertools.count()

    def work(number: int) -> None:
        mine = db.reference(place.path, make_app())

        def add(value: Any) -> Any:
            next(attempts)
            counted = value or {"sum": 0}
            by = f"by{number}"
            return {**counted, "sum": counted["sum"] + 1, by: counted.get(by, 0) + 1}

        for _ in range(rounds):
            while True:
                try:
                    mine.transaction(add)
                    break
                except db.TransactionAbortedError:
                    continue

    in_threads(work, writers)
    assert place.get() == {
        "sum": writers * rounds,
        **{f"by{number}": rounds for number in range(writers)},
    }
    assert next(attempts) > writers * rounds, "Nobody was ever in the way of another."


@pytest.fixture(scope="module")
def people(app: firebase_admin.App) -> db.Reference:
    reference = db.reference("people", app)
    reference.set(PEOPLE)
    return reference


AskedFor = Callable[[db.Reference], db.Query]


@pytest.mark.parametrize(
    ("ask", "expected"),
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
def test_queries_select_and_order(people: db.Reference, ask: AskedFor, expected: list[str]) -> None:
    found = ask(people).get()
    assert list((found or {}).items()) == [(key, PEOPLE[key]) for key in expected]


def test_queries_by_value_order_numbers_before_text(place: db.Reference) -> None:
    place.set({"a": "text", "b": 3, "c": -1.5, "d": True, "e": 20})
    assert list(place.order_by_value().get()) == ["d", "c", "b", "e", "a"]
    assert list(place.order_by_value().start_at(3).limit_to_first(2).get()) == ["b", "e"]
    assert list(place.order_by_value().equal_to("text").get()) == ["a"]


def test_another_database_is_another_tree(app: firebase_admin.App, place: db.Reference) -> None:
    other = db.reference(place.path, app, os.environ["PLAY_EU_URL"])
    place.set("here")
    other.set("there")
    assert (place.get(), other.get()) == ("here", "there")


def test_what_is_no_data_is_refused_with_a_reason(place: db.Reference) -> None:
    with pytest.raises(exceptions.InvalidArgumentError, match="key") as caught:
        place.update({"a$b": 1})
    assert caught.value.http_response.json().keys() == {"error"}


@pytest.fixture(scope="module")
def admin() -> firebase_admin.App:
    """An admin of a project whose rules were put by REST."""
    app = make_guarded_app()
    client = db.reference("/", app)._client
    place = "/.settings/rules.json"
    broken = {"rules": {".read": "auth.uid = 1"}}
    with pytest.raises(exceptions.InvalidArgumentError, match=r"^\d+:\d+: .+\n$"):
        client.request("put", place, json=broken)
    text = json.dumps(CLOSED_RULES, indent=1)
    assert client.body("put", place, data=text, params="dryRun=true") == {"status": "ok"}
    assert client.request("get", place).text != text
    assert client.body("put", place, data=text) == {"status": "ok"}
    assert client.request("get", place).text == text
    assert client.body("get", place, params="format=strict") == CLOSED_RULES
    db.reference("/", app).set({"users": {"ada": {"a": 1}}, "news": {"n1": "new"}})
    return app


def test_an_override_of_auth_is_judged_by_the_rules(admin: firebase_admin.App) -> None:
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


def test_an_override_by_none_is_a_caller_without_a_name(admin: firebase_admin.App) -> None:
    nobody = make_guarded_app(databaseAuthVariableOverride=None)
    assert db.reference("news/n1", nobody).get() == "new"
    with pytest.raises(exceptions.UnauthenticatedError, match=DENIED):
        db.reference("users/ada", nobody).get()


def test_what_rules_validate_binds_all_but_admins(admin: firebase_admin.App) -> None:
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
            """Sign one."""
            self.token = jwt.encode({"admin": True}, self._secret[::-1], "HS256")

    class Forged(Credential):
        """Signs forged tokens."""

        def get_credential(self) -> ForgedToken:
            """Return what signs them."""
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


class Mirror:
    """Keeps a copy of a place by the events of `listen`."""

    def __init__(self) -> None:
        self.value: Any = None
        self.seen: list[tuple[str, str]] = []
        self.news: queue.Queue[None] = queue.Queue()

    def follow(self, event: db.Event) -> None:
        """Apply an event."""
        self.seen.append((event.event_type, event.path))
        keys = [key for key in event.path.split("/") if key]
        if event.event_type == "put":
            self.value = put(self.value, keys, event.data)
        else:
            assert event.event_type == "patch"
            for key, data in event.data.items():
                self.value = put(self.value, [*keys, *key.split("/")], data)
        self.news.put(None)

    def wait_for(self, place: db.Reference, value: Any) -> None:
        """Wait until the copy is what is said."""
        while self.value != value:
            self.news.get(timeout=PATIENCE_S)
        assert place.get() == value


def put(tree: Any, keys: list[str], data: Any) -> Any:
    """Return a tree in which data stands at a path; what is empty is None."""
    if not keys:
        return data
    branch = dict(tree) if isinstance(tree, dict) else {}
    child = put(branch.pop(keys[0], None), keys[1:], data)
    if child is not None:
        branch[keys[0]] = child
    return branch or None


@pytest.fixture
def listen() -> Iterator[Callable[[db.Reference, Callable[[db.Event], None]], None]]:
    """Starts listeners, and ends them: each reads on until an event comes, then it is closed."""
    opened: list[tuple[db.Reference, db.ListenerRegistration]] = []

    def start(place: db.Reference, follow: Callable[[db.Event], None]) -> None:
        opened.append((place, place.listen(follow)))

    yield start
    for place, registration in opened:
        closing = threading.Thread(target=registration.close)
        closing.start()
        place.set("the end")
        closing.join(PATIENCE_S)
        assert not closing.is_alive()


def test_a_listener_hears_every_kind_of_write(place: db.Reference, listen: Any) -> None:
    place.set({"a": 1})
    mirror = Mirror()
    listen(place, mirror.follow)
    mirror.wait_for(place, {"a": 1})
    place.child("b/c").set("x")
    place.update({"a": None, "b/d": 2})
    pushed = place.child("list").push("p")
    mirror.wait_for(place, {"b": {"c": "x", "d": 2}, "list": {pushed.key: "p"}})
    place.child("b").delete()
    place.child("n").transaction(lambda value: (value or 0) + 1)
    mirror.wait_for(place, {"list": {pushed.key: "p"}, "n": 1})
    assert mirror.seen == [
        *(("put", "/"), ("put", "/b/c"), ("patch", "/"), ("put", f"/list/{pushed.key}")),
        *(("put", "/b"), ("put", "/n")),
    ]
    place.delete()
    mirror.wait_for(place, None)


def test_a_listener_to_nothing_hears_what_comes(place: db.Reference, listen: Any) -> None:
    mirror = Mirror()
    listen(place, mirror.follow)
    place.parent.update({f"{place.key}/deep": "čaj\n\n☕"})
    mirror.wait_for(place, {"deep": "čaj\n\n☕"})


def test_listeners_keep_up_with_several_writers(place: db.Reference, listen: Any) -> None:
    mirrors = [Mirror() for _ in range(3)]
    for mirror in mirrors:
        listen(place, mirror.follow)
    writers, rounds = 4, 25

    def write(number: int) -> None:
        mine = db.reference(place.path, make_app())
        for at in range(rounds):
            mine.child(f"own/{number}").set({"at": at})
            mine.update({f"last/w{number}": at, "shared/last": f"{number} {at}"})
            mine.child("log").push({"by": number, "at": at})
            if at % 5 == 4:
                mine.child(f"own/{number}").delete()

    in_threads(write, writers)
    place.child("done").set(True)
    final = place.get()
    assert len(final["log"]) == writers * rounds
    for mirror in mirrors:
        mirror.wait_for(place, final)


def test_a_listener_to_a_part_hears_of_that_part_alone(place: db.Reference, listen: Any) -> None:
    part, mirror = place.child("part"), Mirror()
    listen(part, mirror.follow)
    mirror.news.get(timeout=PATIENCE_S)
    place.child("other").set(1)
    place.update({"other": 2, "part/a": 1})
    mirror.wait_for(part, {"a": 1})
    assert mirror.seen == [("put", "/"), ("put", "/a")]
