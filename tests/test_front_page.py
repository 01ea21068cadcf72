"""The page at `/` from outside: its line for curl, over both protocols, configured and mounted."""

from __future__ import annotations

import html
import pathlib
import re
import subprocess

import pytest

from tests.daemon import Daemon, request
from tests.rest import configured
from tests.test_embedding import running_example, url_of

AS_HTML = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
PROJECT = '[projects.demo]\nrules_file = "open.json"\n'


def curl_of(page: str) -> str:
    found = re.search(r'<code id="curl">(.*?)</code>', page, re.DOTALL)
    assert found is not None
    return html.unescape(found[1])


def run_in_shell(line: str) -> bytes:
    done = subprocess.run(["sh", "-c", line], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "eu--page.localhost"])
def test_the_line_for_curl_works_when_pasted(
    shared_daemon: Daemon, host: str, *, secure: bool
) -> None:
    url = shared_daemon.https if secure else shared_daemon.http
    port = url.rpartition(":")[2]
    headers = {**AS_HTML, "Host": f"{host}:{port}"}
    page = shared_daemon.request("GET", "/", headers=headers, secure=secure)
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    line = curl_of(page.body.decode())
    assert ("--cacert" in line) == secure
    assert f"{host.partition('.')[2] if secure and host[0] == 'e' else host}:{port}" in line
    assert run_in_shell(line) == b'"world"'
    headers = {"Host": host}
    assert shared_daemon.request("GET", "/hello.json", headers=headers).body == b'"world"'


def test_a_program_receives_json_as_for_any_path_without_the_suffix(shared_daemon: Daemon) -> None:
    response = shared_daemon.request("GET", "/", headers={"Accept": "*/*"})
    assert (response.status, response.json["error"]) == (404, "not_found")
    assert "Server" not in response.headers


def test_a_configured_service_has_a_small_page_and_can_do_without(tmp_path: pathlib.Path) -> None:
    for text, status in (("", 200), ("[http]\npage = false\n", 404)):
        with configured(tmp_path, f'default_project = "demo"\n{text}{PROJECT}') as daemon:
            for target in ("/", "/favicon.ico", "/.docs/interface.md"):
                assert daemon.request("GET", target, headers=AS_HTML).status == status
            page = daemon.request("GET", "/", headers=AS_HTML).body.decode()
            assert "demo" not in page
            if status == 200:
                assert run_in_shell(curl_of(page)) == b"null"


def test_a_mounted_tree_has_the_page_at_the_root_of_its_prefix_alone(
    tmp_path: pathlib.Path,
) -> None:
    with running_example(tmp_path) as process:
        site = url_of(process)

        def get(path: str) -> tuple[int, str, str]:
            found = request(site, "GET", path, headers=AS_HTML)
            return found.status, found.headers["Content-Type"], found.body.decode()

        assert get("/")[2] == "The application's own page.\n"
        for path in ("/db/", "/db", "/db//"):
            status, kind, page = get(path)
            assert (status, kind) == (200, "text/html; charset=utf-8")
            assert f"{site}/db/.json?shallow=true" in curl_of(page)
            assert 'href="/db/.docs/interface.md"' in page
        assert get("/db/a")[0] == 404
        assert get("/db/.docs/interface.md")[:2] == (200, "text/html; charset=utf-8")


def test_the_log_names_the_page_and_the_page_says_whose_token_it_shows(
    tmp_path: pathlib.Path,
) -> None:
    with Daemon(tmp_path) as daemon:
        page = f"{daemon.http.replace('127.0.0.1', 'localhost')}/"
        assert f"Or open {page} in a browser." in daemon.log
        assert b"token of an admin" not in daemon.request("GET", "/", headers=AS_HTML).body
        rules, headers = '{"rules": {}}', {"Authorization": "Bearer owner"}
        assert daemon.request("PUT", "/.settings/rules.json", rules, headers=headers).status == 200
        shown = daemon.request("GET", "/", headers=AS_HTML).body
        assert b"token of an admin" in shown
        assert b"Bearer owner" in shown


def test_the_page_is_not_compressed_since_it_may_show_a_token(shared_daemon: Daemon) -> None:
    headers = {**AS_HTML, "Accept-Encoding": "gzip, zstd"}
    page = shared_daemon.request("GET", "/", headers=headers)
    assert len(page.body) > 1024
    assert "Content-Encoding" not in page.headers
    document = shared_daemon.request("GET", "/.docs/interface.md", headers=headers)
    assert document.headers["Content-Encoding"] == "zstd"
