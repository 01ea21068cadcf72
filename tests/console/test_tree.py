"""The tree of the console, in Chromium with a real daemon: what a user sees and does there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

import pytest
from selenium.webdriver import ActionChains, Keys

from tests.console.tree_page import HEIGHT, OWNER, WIDTH, TreePage, open_console

MANY: Final = 100_000
ODD_KEYS: Final = (
    "with space",
    "50%",
    "%2F",
    "it's",
    'a "quote"',
    "日本語",
    "a?b&c=d+e",
    "😀",
    "a:b~",
)
HOSTILE: Final = "<img src=x onerror=alert(1)>"
BEYOND: Final = "9007199254740993"
SUMMARY: Final = ".tree-row .tree-value"


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TreePage]:
    """Open the console once for all tests; each has a place of its own."""
    with open_console(tmp_path_factory.mktemp("tree")) as page:
        yield page


@pytest.fixture
def page(console: TreePage) -> Iterator[TreePage]:
    """Check after each test that no script has failed."""
    yield console
    console.check_quiet(is_away=True)


def test_nodes_open_and_close_by_keys_and_clicks(page: TreePage) -> None:
    page.put("/opening", {"a": {"x": {"deep": True}}, "b": "text", "n": 1.5})
    page.show("/data/opening")
    closed = {
        "opening": "3 children · 44 B",
        "a": "1 child · 19 B",
        "b": '"text"',
        "n": "1.5",
    }
    page.wait_for_rows(closed)
    page.press(Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
    page.row("x")
    page.press(Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
    page.wait_for_value("deep", "true")
    assert list(page.rows) == ["opening", "a", "x", "deep", "b", "n"]
    page.press(Keys.ARROW_RIGHT, Keys.ARROW_LEFT, Keys.ARROW_LEFT, Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    page.wait_for_rows(closed)
    page.click(".tree-row[data-key=a] .twisty")
    page.row("x")
    page.click(".tree-row[data-key=a] .twisty")
    page.wait_for_rows(closed)


def test_what_others_write_is_shown_and_flashes(page: TreePage) -> None:
    page.put("/live", {"a": 1, "b": 2, "c": {"x": 1}, "d": "same"})
    page.show("/data/live")
    page.wait_for_value("a", "1")
    page.put("/live/a", 5)
    page.wait_for_value("a", "5")
    page.put("/live", {"e": 1, "b": None, "c/x": 3}, "PATCH")
    page.wait_for_value("e", "1")
    page.wait_for_value("b", None)
    page.await_true("return flashes.length === 4")
    assert sorted(page.run("return flashes")) == [
        "a changed",
        "b removed",
        "c changed",
        "e added",
    ]
    page.await_true("return !document.querySelector('[class*=flash-]')")
    page.put("/live", None)
    page.wait_for_rows({"live": "nothing"})
    page.put("/live", {"again": True})
    page.wait_for_value("again", "true")


def test_rows_stay_where_they_are_while_others_write_above(page: TreePage) -> None:
    page.put("/anchor", {f"k{number:03}": number for number in range(400)})
    page.show("/data/anchor")
    page.wait_for_value("k005", "5")
    page.run("document.querySelector('.rows').scrollTop = 5000")
    page.choose_row("k190")
    place = "arguments[0].getBoundingClientRect().top"
    top = page.run(f"return {place}", page.row("k190"))
    page.put("/anchor", {"a1": 1, "a2": 2, "k003": None, "k190x": 1}, "PATCH")
    page.wait_for_value("k190x", "1")
    page.put("/anchor", {"a3": 1, "k195": "seen"}, "PATCH")
    page.wait_for_value("k195", '"seen"')
    assert page.run(f"return {place}", page.row("k190")) == top
    assert "active" in str(page.row("k190").get_attribute("class"))
    page.put("/anchor", {"k180x": 1, "k190": None}, "PATCH")
    page.wait_for_value("k190", None)
    assert "active" in str(page.row("k190x").get_attribute("class"))


def test_a_leaf_is_edited_with_its_type_and_the_change_is_undone(page: TreePage) -> None:
    page.put_json("/leaf", f'{{"big":{BEYOND},"flag":false,"text":"one"}}')
    page.show("/data/leaf")
    page.wait_for_value("big", BEYOND)
    page.choose_row("big")
    page.press(Keys.ENTER)
    page.await_shown(".tree-editor input")
    page.press(Keys.END, Keys.BACKSPACE, "5", Keys.ENTER)
    page.wait_for_value("big", "9007199254740995")
    assert page.read("/leaf/big") == "9007199254740995"
    page.chord("z")
    page.wait_for_value("big", BEYOND)
    assert page.read("/leaf/big") == BEYOND
    page.choose_row("text")
    page.press(Keys.ENTER)
    page.choose(".tree-editor select", "number")
    page.push("Save")
    page.await_true("return document.querySelector('.tree-editor .problem')")
    page.press("-1.5e3", Keys.ENTER)  # the field has the focus again, and its text is selected
    page.wait_for_value("text", "-1500")
    page.choose_row("flag")
    page.press(Keys.ENTER)
    page.choose(".tree-editor select[aria-label=Value]", "true")
    page.push("Save")
    page.wait_for_value("flag", "true")
    page.press(Keys.ENTER)
    page.await_shown(".tree-editor")
    page.press(Keys.ESCAPE)
    page.await_true("return !document.querySelector('.tree-editor')")
    assert page.read_value("/leaf/flag") is True


def test_several_changes_are_undone_the_latest_first(page: TreePage) -> None:
    page.put("/several", {"a": 1, "b": 2})
    page.show("/data/several")
    for key in ("a", "b", "a"):
        page.choose_row(key)
        page.press(Keys.ENTER)
        page.await_shown(".tree-editor input")
        page.press("7" if key == "b" else f"{page.read('/several/a')}5", Keys.ENTER)
        page.await_true("return !document.querySelector('.tree-editor')")
    assert page.read_value("/several") == {"a": 155, "b": 7}
    page.show("/data/several/a")
    for value in ({"a": 15, "b": 7}, {"a": 15, "b": 2}, {"a": 1, "b": 2}):
        page.chord("z")
        page.wait_for_server("/several", value)


def test_the_label_of_a_button_is_seen_under_the_mouse(page: TreePage) -> None:
    page.put("/hovering", {"a": 1})
    page.show("/data/hovering")
    page.choose_row("a")
    page.press(Keys.DELETE)
    button = page.await_shown("dialog button.danger")
    style = "const {color, backgroundColor} = getComputedStyle(arguments[0]); "
    before = page.run(f"{style} return [color, backgroundColor]", button)
    ActionChains(page.browser).move_to_element(button).perform()
    page.await_true("return arguments[0].matches(':hover')", button)
    assert page.run(f"{style} return [color, backgroundColor]", button) == before
    page.press(Keys.ESCAPE)


def test_a_long_text_is_edited_in_a_dialog_as_it_is(page: TreePage) -> None:
    page.put("/text", {"lines": "one\n" * 50, "returns": "a\r\nb"})
    page.show("/data/text")
    page.choose_row("lines")
    page.press(Keys.ENTER)
    page.await_shown("dialog textarea")
    page.chord(Keys.END)
    page.press("last")
    page.push("Save")
    page.wait_for_message("/text/lines changed")
    assert page.read_value("/text/lines") == "one\n" * 50 + "last"
    page.choose_row("returns")
    page.press(Keys.ENTER)
    page.await_shown(".tree-editor input")
    page.press(Keys.END, Keys.ARROW_LEFT, "c", Keys.ENTER)
    page.wait_for_value("returns", '"a\\r\\nbc"')
    assert page.read_value("/text/returns") == "a\r\nbc"


def test_what_another_has_written_meanwhile_is_shown_before_it_is_replaced(
    page: TreePage,
) -> None:
    page.put("/conflict", {"a": 1})
    page.show("/data/conflict")
    page.choose_row("a")
    page.press(Keys.ENTER)
    page.await_shown(".tree-editor input")
    page.put("/conflict/a", 999)
    page.press("7", Keys.ENTER)
    page.await_true(
        "return document.querySelector('.tree-editor .problem')?.textContent.includes('999')"
    )
    assert page.read_value("/conflict/a") == 999
    page.press(Keys.ENTER)
    page.wait_for_value("a", "7")
    page.put("/conflict/a", 8)
    page.wait_for_value("a", "8")
    page.chord("z")
    page.wait_for_message("changed by someone else")
    assert page.read_value("/conflict/a") == 8


def edit_row(page: TreePage, key: str, text: str) -> None:
    """Begin to edit a leaf in its row, and type a text in place of its value."""
    page.choose_row(key)
    page.press(Keys.ENTER)
    page.await_shown(".tree-editor input")
    page.press(text)


def typed(page: TreePage, selector: str = ".tree-editor input") -> str:
    """Return the text of a field."""
    return str(page.await_shown(selector).get_attribute("value"))


def test_what_is_typed_stays_when_another_deletes_the_place(page: TreePage) -> None:
    page.put("/gone", {"a": {"b": "old", "c": 1}, "keep": 0})
    page.show("/data/gone")
    page.choose_row("a")
    page.press(Keys.ARROW_RIGHT)
    edit_row(page, "b", "ne text")
    page.press(*[Keys.ARROW_LEFT] * 5)
    page.put("/gone/a/b", None)
    page.await_text("Deleted meanwhile: Save writes it again.", ".editor-bar")
    page.await_text("/gone/a/b", ".editor-bar")
    assert page.examine() == []
    page.press("w")  # the cursor is where it was
    assert typed(page) == "new text"
    page.press(Keys.ENTER)
    page.wait_for_value("b", '"new text"')
    page.chord("z")
    page.wait_for_value("b", None)
    assert page.read_value("/gone/a") == {"c": 1}


def test_what_is_typed_replaces_nothing_that_came_after_a_deletion(page: TreePage) -> None:
    page.put("/again", {"a": {"b": "old"}, "keep": 0})
    page.show("/data/again")
    page.choose_row("a")
    page.press(Keys.ARROW_RIGHT)
    edit_row(page, "b", "mine")
    page.put("/again/a", None)
    page.await_text("Deleted meanwhile", ".editor-bar")
    page.put("/again/a", {"b": "theirs"})
    page.press(Keys.ENTER)
    page.await_text('By now it is "theirs"', ".editor-bar")
    assert (typed(page), page.read_value("/again/a/b")) == ("mine", "theirs")
    page.put("/again/a/b", {"x": 1})
    page.press(Keys.ENTER)
    page.await_text("By now it has children", ".editor-bar")
    assert (typed(page), page.read_value("/again/a/b")) == ("mine", {"x": 1})
    page.press(Keys.ESCAPE)
    page.await_true("return !document.querySelector('.tree-editor')")
    page.put("/again", None)
    page.wait_for_rows({"again": "nothing"})
    assert page.run("return document.activeElement.matches('.rows')")


def test_what_is_typed_stays_when_its_row_is_a_container_or_not_selected_by_now(
    page: TreePage,
) -> None:
    page.put("/turned", {"a": 1, "b": 2})
    page.show('/data/turned?orderBy="$value"&endAt=5')
    edit_row(page, "a", "77")
    page.put("/turned/a", 9)
    page.await_text("By now it is 9", ".editor-bar")
    page.press(Keys.ENTER)
    page.wait_for_server("/turned/a", 77)
    page.show("/data/turned")
    edit_row(page, "a", "78")
    page.put("/turned/a", {"x": 1})
    page.press(Keys.ENTER)
    page.await_text("By now it has children", ".tree-editor")
    assert typed(page) == "78"
    page.press(Keys.ESCAPE)
    page.wait_for_value("a", "1 child · 7 B")
    page.choose_row("a")
    page.press(Keys.ARROW_RIGHT)
    edit_row(page, "x", "79")
    page.put("/turned/a", "leaf")
    page.await_text('in place of /turned/a, which is "leaf".', ".editor-bar")
    page.choose_row("b")
    page.press(Keys.ENTER)  # what is typed already is first to be saved or dropped
    page.await_true("return document.activeElement.matches('.editor-bar input')")
    page.press(Keys.ENTER)
    page.wait_for_server("/turned", {"a": {"x": 79}, "b": 2})


def test_a_dialog_stays_open_until_what_is_typed_is_written(page: TreePage) -> None:
    page.put("/dialog", {"r": {"n": 1}, "s": {"n": 2}})
    page.show("/data/dialog")
    page.choose_of_menu("r", "Edit as JSON")
    page.fill("#field-text", '{"a.b": 1}')
    page.push("Save")
    page.await_text("a.b", "dialog .problem")
    page.fill("#field-text", '{"n": 5}')
    page.put("/dialog/r", None)
    page.push("Save")
    page.await_text("Deleted meanwhile: Save writes it again.", "dialog .problem")
    page.put("/dialog/r", {"n": "theirs"})
    page.push("Save")
    page.await_text('By now it is {"n":"theirs"}', "dialog .problem")
    assert typed(page, "#field-text") == '{"n": 5}'
    page.push("Save")
    page.wait_for_server("/dialog/r", {"n": 5})
    page.show("/data/dialog?table=1")
    page.click(".records .cell", "2")
    page.fill("#field-text", "7")
    page.put("/dialog/s", None)
    page.await_no_text("s", ".records tbody")
    page.push("Save")
    page.await_text("Deleted meanwhile", "dialog .problem")
    assert typed(page, "#field-text") == "7"
    page.push("Save")
    page.wait_for_server("/dialog/s", {"n": 7})


def test_children_are_added_by_name_and_by_push(page: TreePage) -> None:
    page.put("/adding", {"closed": {"m": 1}})
    page.show("/data/adding")
    page.choose_row("closed")
    page.press("a")
    page.fill("#field-key", "a.b")
    page.push("Add")
    page.await_true("return document.querySelector('dialog .problem')")
    page.fill("#field-key", "m")
    page.push("Add")
    page.await_true(
        "return document.querySelector('dialog .problem')?.textContent.includes('exists already')"
    )
    assert page.read_value("/adding/closed/m") == 1
    page.press("new")  # the field has the focus again, and its text is selected
    page.choose("#field-type", "json")
    page.fill("#field-text", f'{{"n": {BEYOND}}}')
    page.push("Add")
    page.await_true("return document.querySelector('.tree-row.active')?.dataset.key === 'new'")
    assert page.read("/adding/closed") == f'{{"m":1,"new":{{"n":{BEYOND}}}}}'
    page.choose_row("adding")
    page.press("a")
    page.fill("#field-text", "pushed")
    page.push("Add")
    page.await_true(
        "return document.querySelector('.tree-row.active')?.textContent.includes('pushed')"
    )
    page.chord("z")
    page.wait_for_message("Undone: /adding/")
    assert list(page.read_value("/adding")) == ["closed"]


def test_a_large_node_is_deleted_by_typing_its_name_and_put_back(page: TreePage) -> None:
    page.put("/deleting", {"large": {f"k{n}": n for n in range(101)}, "small": {"a": 1}})
    page.show("/data/deleting")
    page.choose_row("small")
    page.press(Keys.DELETE)
    page.await_shown("dialog button.danger")
    page.press(Keys.ENTER)  # as one that was typed ahead
    page.await_true("return !document.querySelector('dialog')")
    assert page.read_value("/deleting/small") == {"a": 1}
    page.press(Keys.DELETE)
    page.push("Delete")
    page.wait_for_value("small", None)
    page.click(".tree-bar [aria-label='More of this place']")
    page.push("Undo: /deleting/small deleted")
    page.wait_for_message("/deleting/small restored")
    page.choose_row("small")
    page.press(Keys.DELETE)
    page.push("Delete")
    page.wait_for_value("small", None)
    page.choose_row("large")
    page.press(Keys.DELETE)
    assert not page.await_shown("dialog button.danger").is_enabled()
    page.press("large", Keys.ENTER)
    page.wait_for_rows({"deleting": "nothing"})
    page.chord("z")
    page.row("large")
    assert len(page.read_value("/deleting/large")) == 101


def test_a_priority_is_shown_set_and_kept_when_the_value_is_edited(page: TreePage) -> None:
    page.put("/priority", {"a": {".value": 1, ".priority": 5}})
    page.show("/data/priority")
    page.await_true("return document.querySelector('.tree-priority')?.textContent.includes('5')")
    page.choose_row("a")
    page.press(Keys.ENTER)
    page.await_shown(".tree-editor input")
    page.press("2", Keys.ENTER)
    page.wait_for_value("a", "2")
    assert json.loads(page.read("/priority/a", "?format=export")) == {".value": 2, ".priority": 5}
    page.choose_of_menu("a", "Priority")
    page.fill("#field-text", "7")
    page.push("Set")
    page.await_true("return document.querySelector('.tree-priority')?.textContent.includes('7')")
    assert json.loads(page.read("/priority/a", "?format=export")) == {".value": 2, ".priority": 7}


def test_json_is_edited_without_losing_digits_or_order(page: TreePage) -> None:
    page.put_json("/json", f'{{"n":{{"big":{BEYOND},".priority":"p","z":1}},"list":[1,{BEYOND}]}}')
    page.show("/data/json")
    page.choose_of_menu("n", "Edit as JSON")
    text = str(page.await_shown("#field-text").get_attribute("value"))
    assert f'"big": {BEYOND}' in text
    page.fill("#field-text", text.replace('"z": 1', '"z": 3'))
    page.push("Save")
    page.wait_for_message("/json/n changed")
    assert page.read("/json/n", "?format=export") == f'{{".priority":"p","big":{BEYOND},"z":3}}'
    page.choose_of_menu("list", "Edit as JSON")
    text = str(page.await_shown("#field-text").get_attribute("value"))
    assert text == f"[\n  1,\n  {BEYOND}\n]"
    page.fill("#field-text", text.replace("1,", "[2],"))
    page.push("Save")
    page.wait_for_message("/json/list changed")
    assert page.read("/json/list") == f"[[2],{BEYOND}]"


def test_a_place_is_reached_by_path_url_and_breadcrumb(page: TreePage) -> None:
    page.put("/places", {"odd": dict.fromkeys(ODD_KEYS, 1)})
    page.show("/data/places")
    for typed, shown in (
        ("/places/odd", "data/places/odd"),
        ("places/odd/50%", "data/places/odd/50%25"),
        (f"{page.daemon.http}/places/odd/50%25.json?print=pretty", "data/places/odd/50%25"),
        (f"{page.daemon.http}/.console/#/data/places/odd/it's", "data/places/odd/it's"),
    ):
        page.run("document.querySelector('.rows').focus()")
        page.press("/")
        page.await_shown("#place")
        page.press(typed, Keys.ENTER)
        page.await_true("return location.hash === arguments[0]", f"#/{shown}")
    page.run("document.querySelector('.rows').focus()")
    page.press("/")
    page.await_shown("#place")
    page.press("a.b", Keys.ENTER)
    page.await_true(
        "return document.querySelector('#place').validationMessage.startsWith('Not a place')"
    )
    page.press("c", Keys.ESCAPE)
    page.click("nav.place a:nth-of-type(3)")
    page.await_true("return location.hash === '#/data/places/odd'")
    page.row("日本語")
    assert set(page.rows) == {"odd", *ODD_KEYS}


def test_odd_keys_are_opened_and_edited(page: TreePage) -> None:
    page.put("/odd", {key: {"n": number} for number, key in enumerate(ODD_KEYS)})
    for number, key in enumerate(ODD_KEYS):
        page.show("/data/odd")
        page.choose_of_menu(key, "Show from here")
        page.wait_for_value("n", str(number))
        page.choose_row("n")
        page.press(Keys.ENTER)
        page.await_shown(".tree-editor input")
        page.press("77", Keys.ENTER)
        page.wait_for_value("n", "77")
    assert page.read_value("/odd") == {key: {"n": 77} for key in ODD_KEYS}


def test_keys_and_values_are_text_whatever_they_hold(page: TreePage) -> None:
    page.put("/hostile", {HOSTILE: HOSTILE, "b": {HOSTILE: {".value": 1, ".priority": HOSTILE}}})
    page.show("/data/hostile")
    page.wait_for_value(HOSTILE, json.dumps(HOSTILE))
    page.choose_row("b")
    page.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    page.await_true("return document.querySelector('.tree-priority')?.textContent.includes('<img')")
    page.press(Keys.DELETE)
    page.await_shown("dialog")
    page.press(Keys.ESCAPE)
    page.show("/data/hostile?table=1")
    page.await_true("return document.querySelector('.records')?.textContent.includes('<img')")
    assert page.run("return document.querySelectorAll('main img').length") == 0


def test_thirty_two_levels_are_open_also_on_a_phone(page: TreePage) -> None:
    value: object = "bottom"
    for level in range(30, 0, -1):
        value = {f"l{level}": value}
    page.put("/levels", value)
    page.show("/data/levels")
    for level in range(1, 30):
        page.press(Keys.ARROW_RIGHT if level == 1 else Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
        page.row(f"l{level + 1}")
    page.wait_for_value("l30", '"bottom"')
    page.resize(375)
    try:
        page.await_true(
            "return innerWidth === 375 && document.querySelector('.rows').clientWidth <= 375"
        )
        page.run("document.querySelector('.rows').focus()")
        page.press(Keys.END)
        left, right = page.run(
            "const {left, right} = arguments[0].getBoundingClientRect(); return [left, right]",
            page.await_shown(".tree-row.active .tree-key"),
        )
        assert 0 <= left < right <= 375
        assert page.run("return document.documentElement.scrollWidth") == 375
        page.press(Keys.ENTER)
        page.await_shown("dialog #field-text")
        page.press(Keys.ESCAPE)
    finally:
        page.resize(WIDTH, HEIGHT)


def test_a_hundred_thousand_children_are_a_few_rows_and_pages(page: TreePage) -> None:
    page.put("/many", {f"k{number:06}": {"n": number} for number in range(MANY)})
    page.show("/data/many")
    page.run("performance.clearResourceTimings()")
    page.row("k000005")
    page.run(
        "const rows = document.querySelector('.rows');"
        " rows.scrollTop = (rows.scrollHeight - rows.clientHeight) / 2"
    )
    page.row(f"k{MANY // 2:06}")
    assert page.run("return document.querySelectorAll('.tree-row').length") < 60
    page.press(Keys.END)
    page.row(f"k{MANY - 1:06}")
    page.choose_row(f"k{MANY - 5:06}")
    page.press(Keys.ARROW_RIGHT)
    page.row("n")
    page.press(Keys.ARROW_RIGHT, Keys.ENTER)
    page.await_shown(".tree-editor input")
    page.press("5", Keys.ENTER)
    page.wait_for_value("n", "5")
    page.press(Keys.ARROW_LEFT, Keys.DELETE)
    page.push("Delete")
    page.wait_for_value(f"k{MANY - 5:06}", None)
    page.press(Keys.HOME)
    page.wait_for_value("many", page.run(f"return document.querySelector('{SUMMARY}').textContent"))
    assert str(page.rows["many"]).startswith(f"{MANY - 1:,} children")
    sizes = page.run(
        "return performance.getEntriesByType('resource').map(each => each.transferSize)"
    )
    assert sum(sizes) < 100_000


def test_the_console_goes_on_after_a_restart(page: TreePage) -> None:
    page.put("/restart", {"a": 1})
    page.show("/data/restart")
    page.wait_for_value("a", "1")
    page.daemon.kill()
    page.await_true(
        "return document.querySelector('.banner.warning')"
        " && document.querySelector('.liveness.lost')"
    )
    page.daemon.start()
    page.put("/restart/a", 2)
    page.wait_for_value("a", "2")
    page.await_true(
        "return !document.querySelector('.banner') && document.querySelector('.liveness.live')"
    )
    assert page.rows == {"restart": "1 child · 7 B", "a": "2"}


def test_a_lost_right_is_said_and_tried_again(page: TreePage) -> None:
    page.put("/right", {"a": 1})

    def allow(condition: str) -> None:
        rules = json.dumps({"rules": {".read": condition, ".write": True}})
        response = page.daemon.request("PUT", "/.settings/rules.json", rules, OWNER)
        assert response.status == 200

    page.show("/data/right")
    page.click(".bar-end .chip")
    page.choose("#field-who", "uid")
    page.fill("#field-uid", "ada")
    page.push("View")
    page.await_true(
        "return document.querySelector('.banner') && document.querySelector('.liveness.live')"
    )
    page.wait_for_value("a", "1")
    allow("auth.uid === 'bob'")
    page.await_true(
        "return document.querySelector('.tree .problem')?.textContent.includes('uid ada')"
    )
    assert list(page.rows) == ["right"]
    allow("true")
    page.push("Try again")
    page.wait_for_value("a", "1")
    page.await_true("return document.querySelector('.liveness.live')")
    page.push("Back to yourself")
    page.await_true("return !document.querySelector('.banner')")
