"""The documentation that the daemon serves: its rendering, its links, and that it is packaged."""

from __future__ import annotations

import json
import pathlib
import re

import pytest

from tests.http1.peer import ParsedReply
from tests.web.tree_server import TreeServer
from treedbd.web import pages as documents
from treedbd.web.pages import BESIDE, DOCS_FILES, DOCUMENTS, find_anchor, render, split_sections

PROJECT = pathlib.Path(__file__).parent.parent.parent
AS_HTML = "Accept: text/html"
MAX_TURNS = 200


def read(server: TreeServer, target: str, *headers: str, method: str = "GET") -> ParsedReply:
    """Return the reply to a request that may take several turns."""
    peer = server.connect()
    lines = "".join(f"{each}\r\n" for each in headers)
    peer.send(f"{method} {target} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode())
    for _ in range(MAX_TURNS):
        if peer.transport.value():
            break
        server.clock.advance(0.001)
    (reply,) = peer.read(method.encode())
    return reply


@pytest.fixture
def server(tmp_path: pathlib.Path) -> TreeServer:
    return TreeServer(tmp_path)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_page_is_served_as_it_is_written(server: TreeServer, name: str) -> None:
    for accept in ("Accept: */*", "Accept: text/markdown, text/html;q=0.9", "Accept: text/plain"):
        reply = read(server, f"/.docs/{name}", accept)
        assert reply.status == 200
        assert reply[b"content-type"] == b"text/markdown; charset=utf-8"
        assert reply[b"vary"].startswith(b"Accept")
        assert reply.body == (PROJECT / "docs" / name).read_bytes()


def test_a_browser_receives_a_page_that_is_rendered_once(server: TreeServer) -> None:
    first = read(server, "/.docs/interface.md", AS_HTML)
    assert first[b"content-type"] == b"text/html; charset=utf-8"
    assert b"default-src 'none'" in first[b"content-security-policy"]
    text = first.body.decode()
    assert "<title>The HTTP interface · treedb</title>" in text
    assert '<h2 id="rules-and-databases">Rules and databases</h2>' in text
    assert '<a href="rules.md#indexes">indexes</a>' in text
    assert "<table>" in text
    assert read(server, "/.docs/interface.md", AS_HTML).body == first.body
    assert read(server, "/.docs/interface.md", AS_HTML, method="HEAD").status == 200


def test_requests_that_come_while_a_page_is_rendered_receive_it_too(server: TreeServer) -> None:
    peers = [server.connect() for _ in range(3)]
    for peer in peers:
        peer.send(f"GET /.docs/rules.md HTTP/1.1\r\nHost: localhost\r\n{AS_HTML}\r\n\r\n".encode())
    for _ in range(MAX_TURNS):
        server.clock.advance(0.001)
    bodies = {peer.read(b"GET")[0].body for peer in peers}
    assert len(bodies) == 1
    assert b"<h1" in bodies.pop()


def test_the_tables_have_every_file_that_there_is(server: TreeServer) -> None:
    docs = PROJECT / "docs"
    found = {str(file.relative_to(docs)) for file in docs.rglob("*.*") if file.is_file()}
    found = {name for name in found if "__pycache__" not in name}
    assert found == {*DOCUMENTS, *DOCS_FILES}
    assert {file.name for file in PROJECT.glob("*.md")} == set(BESIDE)


def test_a_page_leads_to_all_others_and_no_link_or_anchor_is_dead(server: TreeServer) -> None:
    pages, texts, waiting = {}, set(), [""]
    links = []
    while waiting:
        name = waiting.pop()
        reply = read(server, f"/.docs/{name}", AS_HTML)
        assert reply.status == 200, name
        if not reply[b"content-type"].startswith(b"text/html"):
            texts.add(name)
            continue
        pages[name] = reply.body.decode()
        assert "<span>" not in pages[name]
        found = re.findall(r'(?:href|src)="(.*?)"', pages[name])
        inner = [each for each in found if not each.startswith(("http", "data:", "../"))]
        links += [(name, each) for each in inner]
        seen = {*pages, *texts, *waiting}
        waiting += {each.partition("#")[0].removeprefix("./") for _, each in links} - seen
    assert pages.keys() == {"", *DOCUMENTS, *BESIDE}
    assert texts > {"conf/treedb.toml", "examples/chat.html", "search.js"}
    anchors = {name: set(re.findall(r'id="([^"]+)"', page)) for name, page in pages.items()}
    for name, link in links:
        page, _, anchor = link.partition("#")
        assert not anchor or anchor in anchors[page or name], (name, link)


def test_the_index_is_a_folder(server: TreeServer) -> None:
    reply = read(server, "/.docs", AS_HTML)
    assert (reply.status, reply[b"location"]) == (308, b".docs/")
    for name in (*DOCUMENTS, *BESIDE[1:]):
        assert name.encode() in read(server, "/.docs/", "Accept: */*").body


def test_a_file_beside_the_pages_is_plain_text_and_runs_nothing(server: TreeServer) -> None:
    for name in DOCS_FILES:
        reply = read(server, f"/.docs/{name}", AS_HTML)
        assert (reply.status, reply.body) == (200, (PROJECT / "docs" / name).read_bytes())
        kind = {".svg": b"image/svg+xml", ".webp": b"image/webp"}.get(pathlib.Path(name).suffix)
        assert reply[b"content-type"].startswith(kind or b"text/plain")
        assert reply[b"content-security-policy"] == b"default-src 'none'"
    assert read(server, "/.docs/conf/treedb.toml").body.startswith(b"#")


def test_the_search_box_has_every_section(server: TreeServer) -> None:
    assert b"script-src 'self'" in read(server, "/.docs/", AS_HTML)[b"content-security-policy"]
    assert b"script-src" not in read(server, "/", AS_HTML)[b"content-security-policy"]
    sections = json.loads(read(server, "/.docs/search.json").body)
    assert {each["page"] for each in sections} == {*DOCUMENTS, *BESIDE}
    (section,) = [each for each in sections if each["heading"] == "The first rules"]
    assert (section["page"], section["anchor"]) == ("operating.md", "the-first-rules")
    assert section["title"] == "Operating treedb"


def test_a_dead_link_is_text_and_markup_is_never_html() -> None:
    shown = render(
        "[a](../conf/x.toml) [e](../conf/treedb.toml) [b](rules.md#c) [d](javascript:x)"
        " <script>x</script>\n"
    )
    assert "<span>a</span>" in shown
    assert '<a href="conf/treedb.toml">e</a>' in shown
    assert '<a href="rules.md#c">b</a>' in shown
    assert "javascript:x" not in re.findall(r'href="(.*?)"', shown)
    assert "<script>" not in shown


def test_sections_begin_at_headings_outside_of_code() -> None:
    source = "# a\n\n```sh\n# b\n```\n## c\nd\n"
    assert [each for each in split_sections(source) if each] == [source[:19], source[19:]]
    assert "".join(split_sections(source)) == source


def test_an_anchor_is_that_of_a_heading() -> None:
    assert find_anchor("The `--lan` option, and more") == "the---lan-option-and-more"


def test_what_is_no_document_is_a_path_as_any_other(server: TreeServer) -> None:
    for target in ("/.docs/missing.md", "/.docs/conf", "/.docs/../README.md", "/.docs/x"):
        reply = read(server, target, AS_HTML)
        assert (reply.status, reply[b"content-type"][:16]) == (404, b"application/json")


def test_an_installation_without_the_documentation_says_so(
    server: TreeServer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "find_project_file", lambda path: tmp_path / path)
    reply = read(server, "/.docs/interface.md")
    assert reply.status == 404
    assert b"not part of this installation" in reply.body
