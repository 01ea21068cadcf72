"""The harness of the client tests: daemons, and processes that run a client.

A client inherits only the search path from the environment of this process, so that no proxy, login
or cache of the user affects it, and it resolves only the host names of the test domain. Its script
reads the URLs of the daemon from the variables `PLAY_...`.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import jwt
import trustme

from tests.daemon import Daemon

HERE: Final = pathlib.Path(__file__).parent
PYTHON: Final = HERE / ".venv/bin/python"
NODE: Final = HERE / ".venv/play-node"
DOMAIN: Final = "db.example.com"
PROJECTS: Final = ("shop", "guarded", "members", "devices", "live")
SECONDS: Final = 600

RULES: Final = """{
  // The tools of Firebase allow comments and trailing commas.
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

[projects.live]
secret_files = ["live.secret"]

[projects.devices]
secret_files = ["devices.secret"]
dialect = "firebase"
"""


class Domain(Daemon):
    """A daemon with TLS for the names below `DOMAIN`; an authority signs its certificate."""

    def __init__(self, folder: pathlib.Path) -> None:
        """Write the files of the configuration into `folder`."""
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
        """Return the URL of a database; it has no trailing slash."""
        return f"https://{label}.{DOMAIN}:{urlsplit(self.https).port}"


def secret_of(project: str) -> str:
    """Return the secret of a project."""
    return f"a secret of {project}, long enough for HS256"


def sign_token(project: str, **claims: Any) -> str:
    """Return a token for a project, valid for an hour."""
    now = int(time.time())
    return jwt.encode({"iat": now, "exp": now + 3600, **claims}, secret_of(project), "HS256")


def check_python(script: str, folder: pathlib.Path, variables: Mapping[str, str]) -> None:
    """Run a script of this folder under the pytest of the clients; AssertionError if it fails."""
    options = ["-o", "addopts=", "--noconftest", "-p", "no:cacheprovider", "-p", "names", "-q"]
    warnings = ["-W", "ignore::pytest.PytestUnhandledThreadExceptionWarning"]
    command = [str(PYTHON), "-B", "-m", "pytest", *options, *warnings, script]
    assert " passed" in run_client(command, HERE, {"HOME": str(folder), **variables})


def run_node(
    arguments: Sequence[str],
    folder: pathlib.Path,
    variables: Mapping[str, str],
    status: int = 0,
) -> str:
    """Run Node.js in `folder`, also its home; return its output, as `run_client` does."""
    unknown_hosts = folder / "asked"
    settings = {"HOME": str(folder), "PLAY_ASKED": str(unknown_hosts), **variables}
    command = [str(NODE), "--require", str(HERE / "names.cjs"), *arguments]
    output = run_client(command, folder, settings, status)
    assert not unknown_hosts.exists(), f"The client tried to reach {unknown_hosts.read_text()}"
    return output


@contextlib.contextmanager
def converse_with_node(
    script: str, folder: pathlib.Path, variables: Mapping[str, str]
) -> Iterator[Callable[[Any], Any]]:
    """Run a script of this folder in Node.js as `run_node` does, within a block.

    Yields what sends it a value as a line of JSON and returns the line that it answers.
    """
    unknown_hosts = folder / "asked"
    settings = {"HOME": str(folder), "PLAY_ASKED": str(unknown_hosts), **variables}
    command = [str(NODE), "--require", str(HERE / "names.cjs"), str(HERE / script)]
    with subprocess.Popen(
        command,
        cwd=folder,
        env={**environment(), **settings},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None
        assert stdout is not None

        def ask(value: Any) -> Any:
            stdin.write(f"{json.dumps(value)}\n")
            stdin.flush()
            answer = stdout.readline()
            assert answer, "Node.js has ended."
            assert not unknown_hosts.exists(), f"It tried to reach {unknown_hosts.read_text()}"
            return json.loads(answer)

        yield ask
        stdin.close()
        assert process.wait(SECONDS) == 0


def environment() -> dict[str, str]:
    """Return what a client has of the environment of this process, and its domain."""
    return {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "PLAY_DOMAIN": DOMAIN}


def run_client(
    command: Sequence[str], folder: pathlib.Path, variables: Mapping[str, str], status: int = 0
) -> str:
    """Run a command to its end; return its standard output. Another status is an AssertionError."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**environment(), **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == status, f"{done.stdout}\n{done.stderr}"
    return done.stdout
