"""The application's own login says who sends a request, in place of a token."""

from __future__ import annotations

import http.client
import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import pytest_twisted
from twisted.internet import reactor
from twisted.internet.defer import Deferred, succeed
from twisted.internet.threads import deferToThread
from twisted.logger import capturedLogs, eventAsText
from twisted.web.server import Site

from tests.embedding.embedded import running, settings_in
from treedbd import ADMIN, TreeService

listens: Any = reactor
Answers = list[tuple[int, Any]]


def by_cookie(request: Any) -> Any:
    """Return who the cookie `user` names."""
    user = request.getCookie(b"user")
    if user == b"root":
        return ADMIN
    if user == b"broken":
        raise ValueError("the cookie user=broken cannot be read")
    return None if user is None else {"uid": user.decode()}


async def later(request: Any) -> Any:
    await succeed(None)
    return by_cookie(request)


def deferred(request: Any) -> Deferred[Any]:
    return Deferred.fromCoroutine(later(request))


def send(
    port: int,
    *requests: tuple[str, str, dict[str, str]],
    parse: Callable[[bytes], Any] = json.loads,
) -> Answers:
    """Send requests on one connection; return statuses and bodies, by `parse`."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    answers: Answers = []
    try:
        for method, path, headers in requests:
            connection.request(method, path, b"1" if method == "PUT" else None, headers)
            response = connection.getresponse()
            assert response.getheader("Cache-Control") == "no-store"
            answers.append((response.status, parse(response.read())))
    finally:
        connection.close()
    return answers


def as_user(name: str, **more: str) -> dict[str, str]:
    return {"Cookie": f"user={name}", **{key.replace("_", "-"): text for key, text in more.items()}}


async def ask(
    folder: pathlib.Path,
    identify: Callable[[Any], Any],
    *requests: tuple[str, str, dict[str, str]],
    is_mounted: bool = False,
    parse: Callable[[bytes], Any] = json.loads,
) -> Answers:
    """Send requests to a service, by its own server or mounted in a `Site`."""
    listen = [] if is_mounted else ["tcp:0:interface=127.0.0.1"]
    settings = settings_in(folder, listen=listen)
    async with running(settings, identify=identify) as service:
        await service.database("app").put("users", {"ada": {"age": 36}, "alan": {"age": 41}})
        if not is_mounted:
            return await deferToThread(send, port_of(service), *requests, parse=parse)
        port = listens.listenTCP(0, Site(service.resource()), interface="127.0.0.1")
        try:
            return await deferToThread(send, port.getHost().port, *requests, parse=parse)
        finally:
            await port.stopListening()


def port_of(service: TreeService) -> int:
    return int(service.urls()[0].rpartition(":")[2].rstrip("/"))


@pytest.mark.parametrize("is_mounted", [False, True])
@pytest.mark.parametrize("identify", [by_cookie, later, deferred])
@pytest_twisted.ensureDeferred
async def test_reads_writes_and_admin_places_are_those_of_the_user(
    tmp_path: pathlib.Path, identify: Any, is_mounted: bool
) -> None:
    answers = await ask(
        tmp_path,
        identify,
        ("GET", "/users/ada/age.json", as_user("ada")),
        ("PUT", "/users/ada/age.json", as_user("ada")),
        ("PUT", "/users/ada/age.json", as_user("alan")),
        ("GET", "/users/ada/age.json", as_user("alan")),
        ("GET", "/users/ada/age.json", {}),
        ("GET", "/users/ada/age.json", as_user("root")),
        ("GET", "/.inspect/databases.json", as_user("root")),
        ("GET", "/.inspect/databases.json", as_user("ada")),
        ("GET", "/users/ada.json", as_user("root", X_TreeDB_Explain="true")),
        ("GET", "/users/ada.json", as_user("ada", X_TreeDB_Explain="true")),
        is_mounted=is_mounted,
    )
    statuses = [status for status, _ in answers]
    assert statuses == [200, 200, 403, 403, 403, 200, 200, 403, 200, 403]
    assert answers[5][1] == 1
    assert answers[6][1] == [{"name": "app"}]
    assert answers[8][1]["admin"] is True


@pytest_twisted.ensureDeferred
async def test_the_caller_is_whom_the_login_names(tmp_path: pathlib.Path) -> None:
    path = "/.inspect/caller.json"
    answers = await ask(
        tmp_path,
        by_cookie,
        ("GET", path, as_user("ada")),
        ("GET", path, as_user("root")),
        ("GET", path, {}),
        ("POST", "/.settings/tokens.json", as_user("ada")),
    )
    assert [status for status, _ in answers] == [200, 200, 401, 403]
    shown = [(each["uid"], each["admin"], each["expires"]) for _, each in answers[:2]]
    assert shown == [("ada", False, None), (None, True, None)]


@pytest_twisted.ensureDeferred
async def test_a_repeated_head_is_asked_about_again(tmp_path: pathlib.Path) -> None:
    logged_in = {"is": True}

    def identify(_: Any) -> Any:
        return {"uid": "ada"} if logged_in["is"] else None

    def log_out_after(count: int) -> Callable[[Any], Any]:
        asked: list[None] = []

        def count_and_identify(request: Any) -> Any:
            asked.append(None)
            logged_in["is"] = len(asked) <= count
            return identify(request)

        return count_and_identify

    read = ("GET", "/users/ada/age.json", {"Cookie": "session=1"})
    answers = await ask(tmp_path, log_out_after(3), *[read] * 5)
    assert [status for status, _ in answers] == [200, 200, 200, 403, 403]


@pytest_twisted.ensureDeferred
async def test_without_a_login_the_token_counts(tmp_path: pathlib.Path) -> None:
    bad = {"Authorization": "Bearer no.good.token"}
    answers = await ask(
        tmp_path,
        by_cookie,
        ("GET", "/users/ada.json?auth=no.good.token", {}),
        ("GET", "/users/ada/age.json", bad | as_user("ada")),
    )
    assert [status for status, _ in answers] == [401, 200]


@pytest.mark.parametrize("answer", ["ada", 7, {"uid": {1}}, ["ada"]])
@pytest_twisted.ensureDeferred
async def test_an_answer_that_is_none_is_an_internal_error(
    tmp_path: pathlib.Path, answer: Any
) -> None:
    ((status, body),) = await ask(tmp_path, lambda _: answer, ("GET", "/public.json", {}))
    assert (status, body["error"]) == (500, "internal_error")


@pytest_twisted.ensureDeferred
async def test_an_error_of_the_login_refuses_the_request_and_shows_no_secret(
    tmp_path: pathlib.Path,
) -> None:
    with capturedLogs() as captured:
        answers = await ask(tmp_path, by_cookie, ("GET", "/public.json", as_user("broken")))
    ((status, body),) = answers
    assert (status, body["error"]) == (500, "internal_error")
    text = "\n".join(map(eventAsText, captured))
    assert "identify raised ValueError at" in text
    assert "broken" not in text + body["message"]


@pytest_twisted.ensureDeferred
async def test_a_page_of_another_site_may_not_use_the_login(tmp_path: pathlib.Path) -> None:
    target = "/users/ada/age.json"
    form = "/users/ada/note.json?x-http-method-override=DELETE"
    foreign = {"Origin": "https://evil.example"}
    script = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Dest": "script"}
    link = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}
    old = {"Accept": "text/html", "User_Agent": "Mozilla/5.0"}
    own = {"Referer": "http://127.0.0.1:3000/page"}
    answers = await ask(
        tmp_path,
        by_cookie,
        ("GET", target, as_user("ada", **foreign)),
        ("PUT", target, as_user("ada", **foreign)),
        ("GET", target + "?callback=f", as_user("ada", **script)),
        ("POST", form, as_user("ada", **old)),
        ("PUT", target, as_user("ada", Origin="http://localhost:3000")),
        ("PUT", target, as_user("ada", Origin="http://127.0.0.1:3000")),
        ("POST", form, as_user("ada", **old, **own)),
        ("GET", target, as_user("ada", **link, Sec_Fetch_Dest="document")),
        ("GET", "/public.json", foreign),
    )
    assert [status for status, _ in answers] == [403, 403, 403, 403, 403, 200, 200, 200, 200]
    assert "for a user who is logged in" in answers[0][1]["message"]
