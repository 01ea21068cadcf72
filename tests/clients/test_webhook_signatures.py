"""The receiver in JavaScript that `docs/webhooks.md` shows verifies what is sent."""

from __future__ import annotations

import json
import pathlib

from tests.clients.harness import run_node
from tests.hooks.test_page import SECRET, message, sent
from tests.pages import read_blocks

TRIAL = """
const [cases, body, secret] = JSON.parse(GIVEN);
console.log(JSON.stringify(cases.map((each) => isGenuine(each, Buffer.from(body), secret))));
"""


def test_the_receiver_in_javascript_verifies_what_is_sent(tmp_path: pathlib.Path) -> None:
    (block,) = read_blocks("webhooks.md", "js")
    cases = [sent(SECRET), sent("n" * 32, SECRET), sent("n" * 32), sent(SECRET, seconds=-400)]
    cases.append(cases[0] | {"X-TreeDB-Timestamp": str(int(cases[0]["X-TreeDB-Timestamp"]) - 1)})
    lower = [{name.lower(): value for name, value in case.items()} for case in cases]
    given = json.dumps([lower, message().body.decode(), SECRET])
    script = tmp_path / "trial.cjs"
    script.write_text(block.text + TRIAL.replace("GIVEN", json.dumps(given)))
    shown = run_node([str(script)], tmp_path, {})
    assert json.loads(shown) == [True, True, False, False, False]
