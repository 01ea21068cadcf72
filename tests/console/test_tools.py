"""The tools of the console's tree: filter, table, import, export, rename, clone, copies."""

from __future__ import annotations

import json
import pathlib
import subprocess
from collections.abc import Iterator
from typing import Final

import pytest
from selenium.webdriver import Keys
from selenium.webdriver.support.wait import WebDriverWait

from tests.browser import POLL_S
from tests.console.page import PATIENCE_S
from tests.console.tree_page import OWNER, TreePage, open_console

BEYOND: Final = "9007199254740993"
RECORDS: Final = 120
CELLS: Final = """
return [...document.querySelectorAll(".records tbody tr")].map(row =>
    [...row.children].map(cell => cell.textContent.trim()));
"""
LARGE: Final = 20_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return where files are downloaded."""
    return tmp_path_factory.mktemp("tools")


@pytest.fixture(scope="module")
def console(folder: pathlib.Path) -> Iterator[TreePage]:
    """Open the console once for all tests; each has a place of its own."""
    with open_console(folder) as page:
        words = {"behavior": "allow", "downloadPath": str(folder)}
        page.browser.execute_cdp_cmd("Browser.setDownloadBehavior", words)
        permissions = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
        page.browser.execute_cdp_cmd("Browser.grantPermissions", permissions)
        yield page


@pytest.fixture
def page(console: TreePage) -> Iterator[TreePage]:
    """Check after each test that no script has failed."""
    yield console
    console.check_quiet(is_away=True)


def put_records(page: TreePage, place: str) -> None:
    records = {
        f"r{number:03}": {"age": number % 7, "name": f"n{RECORDS - number:03}"}
        for number in range(RECORDS)
    }
    page.put(place, records)


def wait_for_cells(page: TreePage, cells: list[list[str]]) -> None:
    """Wait until the table begins with these cells."""
    page.await_true(
        f"return JSON.stringify((() => {{{CELLS}}})().slice(0, arguments[0])) === arguments[1]",
        len(cells),
        json.dumps(cells, separators=(",", ":"), ensure_ascii=False),
    )


def import_file(page: TreePage, file: pathlib.Path, way: str) -> None:
    """Import a file at the place that is shown."""
    page.click(".tree-bar [aria-label='More of this place']")
    page.push("Import JSON")
    page.await_shown("#file").send_keys(str(file))
    page.choose("#field-way", way)
    page.push("Import")


def test_children_are_filtered_and_a_missing_index_is_named(page: TreePage) -> None:
    put_records(page, "/filter")
    page.show("/data/filter")
    page.press("f")
    page.choose(".filter select[name=order]", "child")
    page.fill(".filter input[name=child]", "age")
    page.fill(".filter input[name=equal]", "3")
    page.press(Keys.ENTER)
    page.wait_for_value("filter", "17 selected")
    assert list(page.rows)[1:4] == ["r003", "r010", "r017"]
    assert "age: 3" in page.row("r010").text
    page.put("/filter/r010/name", {"long": "n" * 200_000})
    page.await_true(
        "return !document.querySelector('.tree-row .tree-size')"
    )  # too much to be read for that
    page.put("/filter/r010/name", "n110")
    page.await_true(
        "return document.querySelector('.tree-row .tree-size')?.textContent === 'age: 3'"
    )
    page.await_true(
        "return document.querySelector('.filter')?.textContent.includes('\".indexOn\": [\"age\"]')"
    )
    rules = {"rules": {".read": True, ".write": True, "filter": {".indexOn": ["age"]}}}
    response = page.daemon.request("PUT", "/.settings/rules.json", json.dumps(rules), OWNER)
    assert response.status == 200
    page.put("/filter/r003/age", 4)
    page.wait_for_value("filter", "16 selected")
    page.await_true("return !document.querySelector('.filter .hint')")
    page.fill(".filter input[name=limit]", "5")
    page.press(Keys.ENTER)
    page.wait_for_value("filter", "first 5")
    page.push("Show more")
    page.wait_for_value("filter", "first 10")
    page.fill(".filter input[name=equal]", "")
    page.fill(".filter input[name=where]", '{"name": {"<": "n010"}}')
    page.push("Apply")
    page.row("r112")
    assert list(page.rows)[1:] == ["r112", "r119", "r113", "r114", "r115"]
    page.push("Show all")
    page.wait_for_value("r000", "2 children · 23 B")
    page.push("Filter")


@pytest.mark.slow
def test_an_error_of_the_filter_ends_with_what_it_is_about(page: TreePage) -> None:
    page.put("/erring", {"a": {"age": 40}, "b": {"age": 20}})
    page.show("/data/erring")
    page.press("f")
    problem = "document.querySelector('.filter .problem')"
    example = page.await_shown(".filter input[name=where]").get_attribute("placeholder")
    for end in ("typing", "Show all", "place"):
        page.fill(".filter input[name=where]", "age > 30")
        page.push("Apply")
        page.await_true(f"return {problem}")
        if end == "typing":
            page.fill(".filter input[name=where]", str(example))
        elif end == "place":
            page.show("/data/erring/a")
        else:
            page.push(end)
        page.await_true(f"return !{problem}")
        assert page.await_shown(".filter input[name=where]").get_attribute("value") in ("", example)
    page.show("/data/erring")
    page.fill(".filter input[name=where]", str(example))
    page.push("Apply")
    page.wait_for_value("erring", "1 selected")
    page.push("Filter")


def test_earlier_children_are_shown_above_the_last_ones(page: TreePage) -> None:
    put_records(page, "/last")
    page.show("/data/last?limitToLast=5")
    page.wait_for_value("last", "last 5")
    assert list(page.rows) == ["last", "r115", "r116", "r117", "r118", "r119"]
    assert page.run("return document.querySelector('#row-1').textContent.trim()") == "Show earlier"
    page.choose_row("r117")
    page.press(Keys.HOME, Keys.ARROW_DOWN, Keys.ENTER)
    page.wait_for_value("last", "last 10")
    assert list(page.rows)[1] == "r110"
    page.push("Show all")
    page.row("r000")
    page.push("Filter")


def test_bounds_are_text_or_json_as_typed(page: TreePage) -> None:
    page.put("/bounds", {"a": "3", "b": 3, "c": True, "d": "text"})
    page.show("/data/bounds")
    page.press("f")
    page.choose(".filter select[name=order]", "$value")
    for typed, key in (("3", "b"), ('"3"', "a"), ("true", "c"), ("text", "d")):
        page.fill(".filter input[name=equal]", typed)
        page.press(Keys.ENTER)
        page.wait_for_value("bounds", "1 selected")
        page.row(key)
        assert list(page.rows) == ["bounds", key]
    page.press(Keys.ESCAPE)
    page.push("Show all")
    page.push("Filter")


def test_records_are_a_table_sorted_paged_and_edited(page: TreePage) -> None:
    put_records(page, "/table")
    page.put_json("/table/r001/age", BEYOND)
    page.show("/data/table?table=1")
    wait_for_cells(page, [["r000", "0", "n120"], ["r001", BEYOND, "n119"]])
    page.push("Further")
    wait_for_cells(page, [["r050", "1", "n070"]])
    top = "return document.querySelector('.records').getBoundingClientRect().top"
    before = page.run(top)
    page.push("name")
    wait_for_cells(page, [["r119", "0", "n001"]])
    page.await_true(
        "return document.querySelector('.pages .hint')?.textContent.includes('.indexOn')"
    )
    assert page.run(top) == before
    page.push("name")
    wait_for_cells(page, [["r000", "0", "n120"], ["r001", BEYOND, "n119"]])
    page.click(".records tbody tr:nth-child(2) td .cell")
    page.await_shown("dialog #field-text")
    page.press(Keys.END, Keys.BACKSPACE, "5", Keys.ENTER)
    wait_for_cells(page, [["r000", "0", "n120"], ["r001", "9007199254740995", "n119"]])
    assert page.read("/table/r001/age") == "9007199254740995"
    page.put("/table/r000/name", "n200")
    wait_for_cells(page, [["r000", "0", "n200"]])


def test_a_table_keeps_the_limit_and_conditions_of_a_filter(page: TreePage) -> None:
    put_records(page, "/limited")
    page.show("/data/limited?limitToLast=10")
    page.row("r119")
    page.push("Table")
    wait_for_cells(page, [["r119", "0", "n001"], ["r118", "6", "n002"]])
    assert len(page.run(CELLS)) == 10
    page.push("Further")
    wait_for_cells(page, [["r109", "4", "n011"]])
    page.show('/data/limited?table=1&where={"age":6}')
    wait_for_cells(page, [["r006", "6", "n114"]])
    page.push("name")
    wait_for_cells(page, [["r118", "6", "n002"], ["r111", "6", "n009"]])
    page.push("Filter")


def test_a_table_is_one_at_other_places_too(page: TreePage) -> None:
    page.put("/going", {"a": {"x": {"n": 1}, "y": 2}, "b": 3})
    page.show("/data/going?table=1")
    wait_for_cells(page, [["a", "1 …", "2", ""], ["b", "", "", "3"]])
    page.push("Table")
    page.row("a")
    page.push("Table")
    page.click(".records tbody th a")
    wait_for_cells(page, [["x", "1", ""], ["y", "", "2"]])
    page.click("nav.place a:nth-of-type(2)")
    wait_for_cells(page, [["a", "1 …", "2", ""], ["b", "", "", "3"]])
    page.press("/")
    page.await_shown("#place")
    page.press("going/a", Keys.ENTER)
    wait_for_cells(page, [["x", "1", ""], ["y", "", "2"]])
    page.push("Table")
    page.row("x")
    assert list(page.rows) == ["a", "x", "y"]


def test_a_place_is_exported_and_imported_as_it_was(page: TreePage, folder: pathlib.Path) -> None:
    text = f'{{"a":{{".priority":2,".value":{BEYOND}}},"b":"日本語"}}'
    page.put_json("/export", text)
    page.show("/data/export")
    page.click(".tree-bar [aria-label='More of this place']")
    page.push("Export JSON")
    page.click("#field-priorities")
    page.push("Export")
    page.wait_for_message("export.json is saved")
    file = folder / "export.json"
    WebDriverWait(page.browser, PATIENCE_S, POLL_S).until(lambda _: file.exists())
    assert json.loads(file.read_text()) == json.loads(text)
    page.put("/import", {"b": 1, "c": 2})
    page.show("/data/import")
    import_file(page, file, "merge")
    page.wait_for_value("a", BEYOND)
    assert json.loads(page.read("/import", "?format=export")) == {**json.loads(text), "c": 2}
    page.chord("z")
    page.wait_for_value("b", "1")
    assert page.read_value("/import") == {"b": 1, "c": 2}
    import_file(page, file, "replace")
    page.await_shown("dialog input[name=confirmation]").send_keys("import")
    page.push("Replace")
    page.wait_for_value("c", None)
    assert json.loads(page.read("/import", "?format=export")) == json.loads(text)


def test_a_large_file_is_written_in_pieces_and_a_bad_one_not_at_all(
    page: TreePage, folder: pathlib.Path
) -> None:
    record = {"number": int(BEYOND), "text": "x" * 1000}
    value = {"few": 1, "records": {f"k{number:05}": record for number in range(LARGE)}}
    (folder / "large.json").write_text(json.dumps(value))
    (folder / "bad.json").write_text(json.dumps(value)[:-1])
    page.put("/large", {"records": {"old": 1}, "kept": 1})
    page.show("/data/large")
    import_file(page, folder / "bad.json", "merge")
    page.wait_for_message("Not imported")
    assert page.read_value("/large") == {"records": {"old": 1}, "kept": 1}
    import_file(page, folder / "large.json", "merge")
    page.wait_for_message("large.json is imported")
    assert page.read_value("/large") == {**value, "kept": 1}


def test_a_place_is_renamed_and_cloned_with_its_priority(page: TreePage) -> None:
    value = {"a": {".priority": 3, "n": int(BEYOND)}, "taken": 1}
    page.put("/moving", value)
    page.show("/data/moving")
    page.choose_row("a")
    page.press(Keys.F2)
    page.fill("#field-key", "taken")
    page.push("Rename")
    page.await_true(
        "return document.querySelector('dialog .problem')?.textContent.includes('exists already')"
    )
    assert page.read_value("/moving/taken") == 1
    page.press("b c", Keys.ENTER)  # the field has the focus again, and its text is selected
    page.row("b c")
    exported = json.loads(page.read("/moving", "?format=export"))
    assert exported == {"b c": value["a"], "taken": 1}
    page.chord("z")
    page.wait_for_value("b c", None)
    assert json.loads(page.read("/moving", "?format=export")) == value
    page.choose_of_menu("a", "Clone")
    page.fill("#field-path", "/moving/taken")
    page.push("Clone")
    page.await_true(
        "return document.querySelector('dialog .problem')?.textContent.includes('exists already')"
    )
    assert page.read_value("/moving/taken") == 1
    page.press("/moving/copy/deep", Keys.ENTER)
    page.row("copy")
    assert json.loads(page.read("/moving/copy/deep", "?format=export")) == value["a"]


def test_the_copied_line_of_curl_reads_the_place(page: TreePage) -> None:
    page.put("/copying", {"it's 50%": {"n": 1}})
    page.show("/data/copying")
    page.choose_of_menu("it's 50%", "Copy")
    page.push("Copy as curl")
    page.wait_for_message("line of curl is copied")
    line: str = page.browser.execute_async_script(
        "navigator.clipboard.readText().then(arguments[0], error => arguments[0](String(error)))"
    )
    done = subprocess.run(
        ["sh", "-c", line], env={"TREEDB_TOKEN": "owner"}, capture_output=True, check=False
    )
    assert done.stdout == b'{"n":1}', (line, done.stderr)
    page.put("/copying", {"a": 1, "it's": 2, "c": 3})
    page.show('/data/copying?orderBy="$key"&equalTo="it%27s"&limitToLast=5')
    page.wait_for_value("copying", "1 selected")
    page.click(".tree-bar [aria-label='More of this place']")
    page.push("Copy as curl")
    page.wait_for_message("limitToLast=5")
    line = page.browser.execute_async_script(
        "navigator.clipboard.readText().then(arguments[0], error => arguments[0](String(error)))"
    )
    done = subprocess.run(
        ["sh", "-c", line], env={"TREEDB_TOKEN": "owner"}, capture_output=True, check=False
    )
    assert done.stdout == b'{"it\'s":2}', (line, done.stderr)
    page.push("Show all")
    page.push("Filter")
    page.row("a")
    page.put("/copying", {"it's 50%": {"n": 1}})
    page.choose_of_menu("it's 50%", "Copy")
    page.push("Copy path")
    page.wait_for_message("path is copied")


def test_a_read_only_console_offers_no_change(page: TreePage) -> None:
    page.put("/reading", {"a": 1})
    page.show("/data/reading")
    page.click("[aria-label=Settings]")
    page.push("Read-only mode")
    page.await_shown(".chip")
    page.choose_row("a")
    page.press(Keys.ENTER)
    page.press(Keys.DELETE)
    page.wait_for_message("Read-only mode is on")
    assert page.run("return document.querySelector('dialog, .tree-editor')") is None
    page.press("m")
    enabled = "[...document.querySelectorAll('.menu button:not(:disabled)')]"
    labels = page.run(f"return {enabled}.map(each => each.textContent.trim())")
    assert labels == ["Show from here", "Export JSON …", "Copy …"]
    page.press(Keys.ESCAPE)
    page.click("[aria-label=Settings]")
    page.push("Allow editing")
