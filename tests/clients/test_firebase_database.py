"""`@firebase/database`, as published on npm, forced into its REST mode."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Mapping

from tests.clients.harness import HERE, Domain, run_node, sign_token
from tests.daemon import Daemon

SCRIPT = str(HERE / "play_firebase_database.mjs")


def check_script(folder: pathlib.Path, variables: Mapping[str, str]) -> None:
    """Run the script under the test runner of Node.js; AssertionError if one fails or none ran."""
    output = run_node(["--test", SCRIPT], folder, variables)
    assert re.search(r"^\W*pass [1-9]", output, re.MULTILINE)
    assert re.search(r"^\W*fail 0$", output, re.MULTILINE)


def test_the_rest_mode_reads_in_development_mode(
    development: Daemon, tmp_path: pathlib.Path
) -> None:
    variables = {"PLAY_NS": "web", "PLAY_URL": f"{development.http}/?ns=web"}
    check_script(tmp_path, variables)


def test_the_rest_mode_reads_over_tls_under_rules(domain: Domain, tmp_path: pathlib.Path) -> None:
    variables = {
        "NODE_EXTRA_CA_CERTS": str(domain.ca),
        "PLAY_NS": "members",
        "PLAY_URL": domain.url("members"),
        "PLAY_TOKEN": sign_token("members", admin=True),
        "PLAY_USER": sign_token("members", uid="ada"),
    }
    check_script(tmp_path, variables)
