"""`@firebase/database`, as published on npm, forced into its REST mode."""

from __future__ import annotations

import pathlib

from tests.clients.harness import HERE, Domain, run_node, sign_token
from tests.daemon import Daemon

SCRIPT = str(HERE / "play_firebase_database.mjs")


def test_the_rest_mode_reads_in_development_mode(
    development: Daemon, tmp_path: pathlib.Path
) -> None:
    variables = {"PLAY_NS": "web", "PLAY_URL": f"{development.http}/?ns=web"}
    run_node(["--test", SCRIPT], tmp_path, variables)


def test_the_rest_mode_reads_over_tls_under_rules(domain: Domain, tmp_path: pathlib.Path) -> None:
    variables = {
        "NODE_EXTRA_CA_CERTS": str(domain.ca),
        "PLAY_NS": "members",
        "PLAY_URL": domain.url("members"),
        "PLAY_TOKEN": sign_token("members", admin=True),
        "PLAY_USER": sign_token("members", uid="ada"),
    }
    run_node(["--test", SCRIPT], tmp_path, variables)
