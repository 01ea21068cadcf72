"""Where the clients of the vendor's service play: daemons for them, and processes of their own.

A client runs with nothing of this process's environment but the search path, so that no proxy,
login or cache of whoever runs the tests can help it, and knows of host names only those of the
test domain. What it is to reach, its script reads from the variables `PLAY_...`.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import jwt
import trustme

from tests.daemon import Daemon

HERE: Final = pathlib.Path(__file__).parent
PYTHON: Final = HERE / ".venv/bin/python"
NODE: Final = HERE / ".venv/play-node"
DOMAIN: Final = "db.example.com"
PROJECTS: Final = ("shop", "guarded", "members", "devices")
SECONDS: Final = 120

RULES: Final = """{
  // Comments and trailing commas are the tools' own habit.
  "rules": {
    "users": {"$uid": {".read": "auth.uid === $uid", ".write": "auth.uid === $uid"}},
  },
}
"""
CONFIG: Final = f"""
domains = ["{DOMAIN}"]

[projects.shop]
secret_files = ["shop.secret"]
databases = "*"

[projects.guarded]
secret_files = ["guarded.secret"]

[projects.members]
secret_files = ["members.secret"]
rules_file = "members.json"

[projects.devices]
secret_files = ["devices.secret"]
dialect = "firebase"
"""


class Domain(Daemon):
    """A daemon with TLS for the names below `DOMAIN`, by a certificate of an authority."""

    def __init__(self, folder: pathlib.Path) -> None:
        """Write what it needs into `folder`."""
        for project in PROJECTS:
            (folder / f"{project}.secret").write_text(secret_of(project))
        (folder / "members.json").write_text(RULES)
        authority = trustme.CA()
        issued = authority.issue_cert(f"*.{DOMAIN}", "127.0.0.1")
        issued.private_key_and_cert_chain_pem.write_to_path(folder / "identity.pem")
        authority.cert_pem.write_to_path(folder / "ca.pem")
        files = f"privateKey={folder}/identity.pem:certKey={folder}/identity.pem"
        super().__init__(folder, config=CONFIG, listen=[f"ssl:0:interface=127.0.0.1:{files}"])

    @property
    def ca(self) -> pathlib.Path:
        """The certificate of the authority, in PEM."""
        return self.folder / "ca.pem"

    def url(self, label: str) -> str:
        """Return the URL of a database, without a slash at its end."""
        return f"https://{label}.{DOMAIN}:{urlsplit(self.https).port}"


def secret_of(project: str) -> str:
    """Return the secret of a project of the domain."""
    return f"a secret of {project}, long enough for HS256"


def sign_token(project: str, **claims: Any) -> str:
    """Return a token of an hour for a project of the domain."""
    now = int(time.time())
    return jwt.encode({"iat": now, "exp": now + 3600, **claims}, secret_of(project), "HS256")


def play_python(script: str, folder: pathlib.Path, variables: Mapping[str, str]) -> None:
    """Run a script of this folder under the pytest of the clients; fail with what it said."""
    options = ["-o", "addopts=", "--noconftest", "-p", "no:cacheprovider", "-p", "names", "-q"]
    warnings = ["-W", "ignore::pytest.PytestUnhandledThreadExceptionWarning"]
    command = [str(PYTHON), "-B", "-m", "pytest", *options, *warnings, script]
    run_client(command, HERE, {"HOME": str(folder), **variables})


def play_node(
    arguments: Sequence[str],
    folder: pathlib.Path,
    variables: Mapping[str, str],
    status: int = 0,
) -> str:
    """Run Node.js in `folder`, which is its home too; return what it said, fail if not `status`."""
    asked = folder / "asked"
    settings = {"HOME": str(folder), "PLAY_ASKED": str(asked), **variables}
    command = [str(NODE), "--require", str(HERE / "names.cjs"), *arguments]
    said = run_client(command, folder, settings, status)
    assert not asked.exists(), f"The client wanted to reach {asked.read_text()}"
    return said


def run_client(
    command: Sequence[str], folder: pathlib.Path, variables: Mapping[str, str], status: int = 0
) -> str:
    """Run a command to its end; return its standard output, fail if it ends with another status."""
    environment = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "PLAY_DOMAIN": DOMAIN}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**environment, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == status, f"{done.stdout}\n{done.stderr}"
    return done.stdout
