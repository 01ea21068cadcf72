"""The programs of `docs/clients.md` for the SDKs, run by Node.js as a reader would."""

from __future__ import annotations

import pathlib
from typing import Final

import pytest

from tests.clients.harness import DOMAIN, HERE, Domain, run_node, secret_of, sign_token
from tests.clients.sdk_daemons import PROJECT, put_rules, secure_variables
from tests.daemon import Daemon
from tests.oidc import AUDIENCE, OidcProvider, authority_pem
from tests.pages import Check, Shell, check_blocks, matches, read_blocks

BLOCKS: Final = read_blocks("clients.md", "js", "text")
LISTEN: Final = "tcp:0:interface=127.0.0.1"
SIGN_IN: Final = "js sign_in.mjs"
IN_DEVELOPMENT: Final = ("app.mjs", "compat.mjs", "emulator.mjs", "admin_dev.mjs")
OVER_TLS: Final = ("signed.mjs", "admin.mjs")


class Programs:
    """Runs programs of the page in a folder, where the SDKs are installed."""

    def __init__(
        self, folder: pathlib.Path, variables: dict[str, str], replaced: dict[str, str]
    ) -> None:
        """Begin; `replaced` is what is different in a test."""
        self.folder = folder
        self._variables = variables
        self._replaced = replaced
        (folder / "node_modules").symlink_to(HERE / "node_modules")

    def check_program(self, name: str) -> None:
        """Write and run a program; its output must be what the page shows."""
        kinds = [block.kind for block in BLOCKS]
        begin = kinds.index(f"js {name}")
        shown = kinds[begin + 1 : begin + 2] == ["text"]
        helper = next(block for block in BLOCKS if block.kind == SIGN_IN)
        (self.folder / SIGN_IN.split()[1]).write_text(helper.text)

        def write_and_run(text: str) -> Check:
            return self._write_and_run(name, text, shown=shown)

        check_blocks(BLOCKS[begin : begin + 1 + shown], {f"js {name}": write_and_run})

    def _write_and_run(self, name: str, text: str, *, shown: bool) -> Check:
        for page, test in self._replaced.items():
            text = text.replace(page, test)
        (self.folder / name).write_text(text)
        output = run_node([name], self.folder, self._variables)
        assert shown or output == ""

        def check(expected: str) -> None:
            assert matches(expected, output.rstrip("\n")), output

        return check


def test_every_program_of_the_page_is_run_by_a_test() -> None:
    kinds = {block.kind for block in BLOCKS if block.kind.startswith("js")}
    assert kinds == {SIGN_IN, *(f"js {name}" for name in (*IN_DEVELOPMENT, *OVER_TLS))}


@pytest.mark.parametrize("name", IN_DEVELOPMENT)
def test_a_program_for_development_mode_does_what_the_page_says(
    name: str, daemon: Daemon, tmp_path: pathlib.Path
) -> None:
    port = str(daemon.port)
    (tmp_path / "treedb-data").symlink_to(daemon.data)
    shell = Shell(tmp_path)
    shell.run("treedb token --project demo --uid ada --ttl 1h")
    variables = {"TREEDB_TOKEN": shell.output}
    if name == "admin_dev.mjs":
        variables["FIREBASE_DATABASE_EMULATOR_HOST"] = f"localhost:{port}"
    Programs(tmp_path, variables, {"9000": port}).check_program(name)


@pytest.mark.parametrize("name", OVER_TLS)
def test_a_program_for_a_real_machine_does_what_the_page_says(
    name: str, domain: Domain, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "shop.secret").write_text(secret_of(PROJECT) + "\n")
    variables = {**secure_variables(domain), "TREEDB_TOKEN": sign_token(PROJECT, uid="ada")}
    replaced = {f"https://shop.{DOMAIN}": domain.url(PROJECT), "/etc/treedb/": f"{tmp_path}/"}
    Programs(tmp_path, variables, replaced).check_program(name)


def test_an_sdk_is_signed_in_with_a_token_of_an_openid_provider(tmp_path: pathlib.Path) -> None:
    (tmp_path / f"{PROJECT}.secret").write_text(secret_of(PROJECT))
    (tmp_path / "ca.pem").write_bytes(authority_pem())
    with OidcProvider() as provider:
        lines = ["emulator = true", f"[projects.{PROJECT}]", f'secret_files = ["{PROJECT}.secret"]']
        lines += [f"[[projects.{PROJECT}.providers]]", f'issuer = "{provider.issuer}"']
        lines += [f'audience = "{AUDIENCE}"', 'ca_file = "ca.pem"']
        with Daemon(tmp_path, config="\n".join(lines), listen=[LISTEN]) as daemon:
            put_rules(daemon, f"/.settings/rules.json?ns={PROJECT}")
            url = f"{daemon.http}/?ns={PROJECT}"
            variables = {"TREEDB_TOKEN": provider.token(sub="ada")}
            replaced = {f"https://shop.{DOMAIN}": url}
            Programs(tmp_path, variables, replaced).check_program("signed.mjs")
            target = f"/users/ada.json?ns={PROJECT}&auth={provider.token(sub='ada')}"
            assert daemon.request("GET", target).body == b'{"name":"Ada"}'
