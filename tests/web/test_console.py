"""The files of the console: headers, codings, conditions, and what a request cannot name."""

from __future__ import annotations

import gzip
import os
import pathlib
import sys
from collections.abc import Iterator

import attrs
import pytest

from tests.http1.peer import ParsedReply
from tests.web.tree_server import SETTINGS, TreeServer
from treedbd.config.settings import HttpSettings
from treedbd.limits import MAX_CONSOLE_FILE_BYTES, MAX_CONSOLE_FILES
from treedbd.web import console
from treedbd.web.console import FOLDER, RESCAN_S, find_files

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

DEVELOPMENT = attrs.evolve(SETTINGS, default_project="demo", development=True, quiet=True)
LONG = b"const all = [1, 2, 3]; // a comment\n" * 2000
FAR = "192.0.2.1"
NEAR = "127.0.0.1"


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The folder of a console."""
    files = tmp_path / "console"
    (files / "vendor").mkdir(parents=True)
    (files / "index.html").write_bytes(b"<!doctype html>")
    (files / "vendor" / "long.js").write_bytes(LONG)
    (files / "vendor" / "VENDOR.md").write_bytes(b"# What it is made of")
    (files / "module.py").write_bytes(b"secret")
    (files / ".hidden.js").write_bytes(b"secret")
    (tmp_path / "outside.js").write_bytes(b"secret")
    monkeypatch.setattr(console.Console.__init__, "__defaults__", (files,))
    return files


@pytest.fixture
def server(tmp_path: pathlib.Path, folder: pathlib.Path) -> TreeServer:
    return TreeServer(tmp_path, options=DEVELOPMENT)


def ask(
    server: TreeServer, target: str, *headers: str, method: str = "GET", address: str = FAR
) -> ParsedReply:
    """Return the reply to a request that may take several turns."""
    peer = server.connect(address)
    lines = "".join(f"{each}\r\n" for each in headers)
    peer.send(f"{method} {target} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode())
    server.clock.advance(0)
    server.clock.run()
    (reply,) = peer.read(method.encode())
    return reply


def test_the_index_and_the_files_have_their_types(server: TreeServer, folder: pathlib.Path) -> None:
    kinds = {
        "a.css": b"text/css; charset=utf-8",
        "a.svg": b"image/svg+xml",
        "a.png": b"image/png",
        "a.json": b"application/json",
        "a.woff2": b"font/woff2",
    }
    for name in kinds:
        (folder / name).write_bytes(name.encode())
    server.clock.advance(RESCAN_S)
    for name, kind in kinds.items():
        reply = ask(server, f"/.console/{name}")
        assert (reply.status, reply.body, reply[b"content-type"]) == (200, name.encode(), kind)
    index = ask(server, "/.console/")
    assert (index.status, index.body) == (200, b"<!doctype html>")
    assert index[b"content-type"] == b"text/html; charset=utf-8"
    assert ask(server, "/.console/index.html").body == index.body
    assert ask(server, "/%2Econsole/vendor/long.js").body == LONG


def test_other_origins_may_not_frame_it_read_it_or_be_loaded_by_it(server: TreeServer) -> None:
    for target, headers in (
        ("/.console/", ()),
        ("/.console", ()),
        ("/.console/vendor/long.js", ()),
    ):
        reply = ask(server, target, *headers)
        policy = reply[b"content-security-policy"].decode().split("; ")
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert "style-src 'self'" in policy
        assert "connect-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in str(policy)
        assert reply[b"x-content-type-options"] == b"nosniff"
        assert reply[b"referrer-policy"] == b"no-referrer"
        assert reply[b"cross-origin-opener-policy"] == b"same-origin"
        assert reply[b"cross-origin-resource-policy"] == b"same-origin"
        assert reply[b"cache-control"] == b"no-cache"
        assert not [name for name, _ in reply.fields if name.startswith(b"access-control-")]
        assert b"x-frame-options" in reply


def test_the_folder_itself_is_a_redirect(server: TreeServer) -> None:
    reply = ask(server, "/.console")
    assert (reply.status, reply[b"location"]) == (308, b".console/")


@pytest.mark.parametrize(
    "name",
    [
        *("missing.js", "vendor", "vendor/", "vendor/long.js/", "vendor//long.js", "module.py"),
        *(".hidden.js", "vendor/VENDOR.md", "tree/a/b", "../outside.js", "%2e%2e/outside.js"),
        *("vendor/..%2f../outside.js", "%2Fetc%2Fpasswd", "%00", "%ff", "index.html%00.js"),
    ],
)
def test_what_is_not_in_the_table_is_404(server: TreeServer, name: str) -> None:
    reply = ask(server, f"/.console/{name}")
    assert reply.status == 404
    assert reply.body == b'{"error":"not_found","message":"The console has no such file."}'


def test_other_sites_cannot_read_errors_either(server: TreeServer) -> None:
    errors = [
        ask(server, "/.console/missing.js", "Origin: http://localhost:1"),
        ask(server, "/.console/", method="PUT"),
        ask(server, "/.console/", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors"),
    ]
    assert [each.status for each in errors] == [404, 405, 403]
    page = ask(server, "/.console/")
    for each in errors:
        assert each[b"cache-control"] == b"no-store"
        for name in (b"content-security-policy", b"x-frame-options", b"x-content-type-options"):
            assert each[name] == page[name]
        assert each[b"cross-origin-resource-policy"] == b"same-origin"
        assert not [name for name, _ in each.fields if name.startswith(b"access-control-")]


def test_a_link_to_another_folder_is_not_followed(server: TreeServer, folder: pathlib.Path) -> None:
    (folder / "elsewhere").symlink_to(folder.parent)
    server.clock.advance(RESCAN_S)
    assert ask(server, "/.console/elsewhere/outside.js").status == 404


def test_head_and_options_say_what_get_does(server: TreeServer) -> None:
    for target in ("/.console/", "/.console/vendor/long.js"):
        body = ask(server, target).body
        head = ask(server, target, method="HEAD")
        assert (head.status, head.body) == (200, b"")
        assert head[b"content-length"] == b"%d" % len(body)
        options = ask(
            server,
            target,
            "Access-Control-Request-Method: GET",
            "Origin: http://localhost",
            method="OPTIONS",
        )
        assert (options.status, options[b"allow"]) == (204, b"GET, HEAD, OPTIONS")
        assert not [name for name, _ in options.fields if name.startswith(b"access-control-")]
    for method in ("PUT", "POST", "PATCH", "DELETE"):
        reply = ask(server, "/.console/", method=method)
        assert (reply.status, reply[b"allow"]) == (405, b"GET, HEAD, OPTIONS")


def test_a_client_that_has_the_file_is_told_so(server: TreeServer, folder: pathlib.Path) -> None:
    tag = ask(server, "/.console/vendor/long.js")[b"etag"].decode()
    for condition in (tag, tag.removeprefix("W/"), f'"x", {tag}', "*"):
        for coding in ("identity", "gzip"):
            reply = ask(
                server,
                "/.console/vendor/long.js",
                f"If-None-Match: {condition}",
                f"Accept-Encoding: {coding}",
            )
            assert (reply.status, reply.body) == (304, b"")
            assert reply[b"etag"] == tag.encode()
            assert reply[b"vary"] == b"Accept-Encoding"
    assert ask(server, "/.console/vendor/long.js", 'If-None-Match: W/"x"').status == 200
    assert ask(server, "/.console/", f"If-None-Match: {tag}").status == 200


@pytest.mark.parametrize(
    ("accepted", "decode"), [("gzip", gzip.decompress), ("gzip;q=0.5, zstd", zstd.decompress)]
)
def test_a_long_file_is_encoded_once(server: TreeServer, accepted: str, decode: object) -> None:
    assert callable(decode)
    target, wanted = "/.console/vendor/long.js", f"Accept-Encoding: {accepted}"
    first = ask(server, target, wanted)
    assert first[b"content-encoding"].decode() in accepted
    assert decode(first.body) == LONG
    assert ask(server, target, wanted).body == first.body
    head = ask(server, target, wanted, method="HEAD")
    assert head[b"content-length"] == b"%d" % len(first.body)
    plain = ask(server, target)
    assert plain.body == LONG
    assert plain[b"vary"] == b"Accept-Encoding"
    assert b"content-encoding" not in plain
    assert b"content-encoding" not in ask(server, "/.console/", wanted)


def test_a_client_of_this_machine_does_not_wait_for_the_coding(server: TreeServer) -> None:
    target, wanted = "/.console/vendor/long.js", "Accept-Encoding: gzip"
    server.clock.lag = 0.001
    first = ask(server, target, wanted, address=NEAR)
    assert (first.body, b"content-encoding" in first) == (LONG, False)
    assert gzip.decompress(ask(server, target, wanted, address=NEAR).body) == LONG


def test_a_file_is_encoded_in_slices_once_for_all(server: TreeServer) -> None:
    server.clock.lag = 0.001
    peers = [server.connect(FAR) for _ in range(3)]
    for peer in peers:
        peer.send(
            b"GET /.console/vendor/long.js HTTP/1.1\r\nHost: localhost\r\n"
            b"Accept-Encoding: gzip\r\n\r\n"
        )
    assert not any(peer.transport.value() for peer in peers)
    before = server.clock.turns
    server.clock.run()
    assert server.clock.turns - before > 1
    bodies = {peer.read(b"GET")[0].body for peer in peers}
    assert [gzip.decompress(body) for body in bodies] == [LONG]


def test_without_compression_files_are_sent_as_they_are(
    tmp_path: pathlib.Path, folder: pathlib.Path
) -> None:
    options = attrs.evolve(DEVELOPMENT, http=HttpSettings(compression=False))
    server = TreeServer(tmp_path, options=options)
    reply = ask(server, "/.console/vendor/long.js", "Accept-Encoding: gzip")
    assert reply.body == LONG
    assert b"content-encoding" not in reply


def test_an_edited_file_is_served_at_once(server: TreeServer, folder: pathlib.Path) -> None:
    wanted = "Accept-Encoding: gzip"
    before = ask(server, "/.console/vendor/long.js", wanted)
    file = folder / "vendor" / "long.js"
    changed = LONG.replace(b"all", b"any")
    file.write_bytes(changed)
    os.utime(file, ns=(1, 1))
    after = ask(server, "/.console/vendor/long.js", wanted)
    assert gzip.decompress(after.body) == changed
    assert after[b"etag"] != before[b"etag"]
    file.unlink()
    assert ask(server, "/.console/vendor/long.js").status == 404


def test_a_new_file_is_found_within_a_second(server: TreeServer, folder: pathlib.Path) -> None:
    (folder / "new.js").write_bytes(b"1")
    server.clock.advance(RESCAN_S)
    assert ask(server, "/.console/new.js").body == b"1"
    (folder / "newer.js").write_bytes(b"2")
    assert ask(server, "/.console/newer.js").status == 404
    server.clock.advance(RESCAN_S)
    assert ask(server, "/.console/newer.js").body == b"2"


def test_a_file_that_is_too_large_is_not_served(server: TreeServer, folder: pathlib.Path) -> None:
    (folder / "large.js").write_bytes(bytes(MAX_CONSOLE_FILE_BYTES + 1))
    server.clock.advance(RESCAN_S)
    assert ask(server, "/.console/large.js").status == 404
    (folder / "large.js").write_bytes(bytes(MAX_CONSOLE_FILE_BYTES))
    assert ask(server, "/.console/large.js").status == 200


def test_the_table_is_bounded(tmp_path: pathlib.Path) -> None:
    for number in range(MAX_CONSOLE_FILES + 1):
        (tmp_path / f"{number}.js").touch()
    assert len(find_files(tmp_path)) == MAX_CONSOLE_FILES


def test_at_another_host_there_is_no_console(server: TreeServer) -> None:
    assert server.request("GET", "/.console/", host="evil.example").status == 421


def own_files() -> Iterator[pathlib.Path]:
    """Return the files of the console that have content of their own."""
    return (file for file in FOLDER.rglob("*") if file.is_file() and file.suffix != ".md")


def test_every_file_of_the_console_is_served(tmp_path: pathlib.Path) -> None:
    server = TreeServer(tmp_path, options=DEVELOPMENT)
    for file in own_files():
        reply = ask(server, f"/.console/{file.relative_to(FOLDER).as_posix()}")
        assert (reply.status, reply.body) == (200, file.read_bytes())
