"""Images of `conf/Containerfile`: one that a builder makes, or the same steps done without one.

Without a builder each step is done by hand in a folder that plays the root of the image, by the
text of the file: absolute paths in it are paths below that folder. What that does not show is the
base image, and the isolation of a container.
"""

from __future__ import annotations

import abc
import fnmatch
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tests.closing import Closing
from tests.sandbox import is_usable_by_others
from tests.system import find_port, wait_until

PROJECT = pathlib.Path(__file__).parent.parent
CONTAINERFILE = PROJECT / "conf" / "Containerfile"
BUILDERS = ("podman", "docker")
CONFIG = """
listen = ["tcp:{port}"]
default_project = "shop"
{data}
[projects.shop]
rules_file = "rules.json"
"""
RULES = '{"rules": {".read": true, ".write": true}}'
_PATH = re.compile(r"(?<![\w./])/(?=(?:opt|src|etc|var)/)")


class Step(NamedTuple):
    """An instruction of the file and the rest of its line."""

    name: str
    rest: str

    @property
    def words(self) -> list[str]:
        """The rest, in words; a list in JSON is such words."""
        command = self.rest.removeprefix("CMD ") if self.name == "HEALTHCHECK" else self.rest
        found: Any = json.loads(command) if command.startswith("[") else shlex.split(command)
        return [str(word) for word in found]


def read_steps() -> list[Step]:
    """Return the instructions of the file, in order."""
    lines = [line for line in CONTAINERFILE.read_text().splitlines() if not line.startswith("#")]
    text = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [Step(*line.split(maxsplit=1)) for line in text.splitlines() if line]


def last(steps: Sequence[Step], name: str) -> Step:
    """Return the last instruction of a name."""
    return next(step for step in reversed(steps) if step.name == name)


def health_command(steps: Sequence[Step]) -> list[str]:
    """Return the words of the health check."""
    _, _, command = last(steps, "HEALTHCHECK").rest.partition("CMD ")
    return Step("CMD", command).words


def find_builder() -> str | None:
    """Return a builder that works here and can get the base image; None if there is none."""
    base = read_steps()[0].rest.split()[0]
    for name in BUILDERS:
        if shutil.which(name) and all(
            subprocess.run([name, *words], capture_output=True, check=False).returncode == 0
            for words in (("info",), ("pull", base))
        ):
            return name
    return None


class Container(Closing):
    """A container that runs an image; `port` is where it listens, on this machine."""

    port: int

    @property
    def url(self) -> str:
        """The URL of what it serves; it has no trailing slash."""
        return f"http://127.0.0.1:{self.port}"

    @abc.abstractmethod
    def start(self) -> None:
        """Start it, and return when it is ready."""

    @abc.abstractmethod
    def is_healthy(self) -> bool:
        """Run the health check."""

    @abc.abstractmethod
    def stop(self) -> int:
        """Stop it by the signal of the image; return its exit status."""


class ContainerByHand(Container):
    """The steps of the file, done in a folder."""

    def __init__(self) -> None:
        self._holder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self._holder.name) / "root"
        pathlib.Path(self._holder.name).chmod(0o755)
        self.steps = read_steps()
        self.port = find_port()
        self._kept: dict[tuple[str, str], pathlib.Path] = {}
        self._variables: dict[str, str] = {}
        self._process: subprocess.Popen[str] | None = None
        self._is_root = os.geteuid() == 0 and is_usable_by_others(pathlib.Path(sys.executable))
        self._build()

    def close(self) -> None:
        """Kill what runs, and remove everything."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
        self._holder.cleanup()

    def start(self) -> None:
        """Start what the image starts."""
        folder = self._at("/etc/treedb")
        data = f'data = "{self._at("/var/lib/treedb")}"'
        (folder / "treedb.toml").write_text(CONFIG.format(port=self.port, data=data))
        (folder / "rules.json").write_text(RULES)
        command = [*last(self.steps, "ENTRYPOINT").words, *last(self.steps, "CMD").words]
        self._process = subprocess.Popen(
            [*self._user(), *map(self._map, command)],
            cwd=self._at(last(self.steps, "WORKDIR").rest),
            env=self._environment(self._variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self._process.stdout is not None
        lines = []
        for line in self._process.stdout:
            lines.append(line)
            if line.startswith("treedb ready "):
                return
        raise AssertionError("".join(lines))

    def is_healthy(self) -> bool:
        """Run the health check, for the port that is free here."""
        url = self._variables["TREEDB_HEALTH_URL"].replace(":8080/", f":{self.port}/")
        done = subprocess.run(
            [*self._user(), *map(self._map, health_command(self.steps))],
            env=self._environment({**self._variables, "TREEDB_HEALTH_URL": url}),
            capture_output=True,
            check=False,
        )
        return done.returncode == 0

    def stop(self) -> int:
        """Stop the process."""
        assert self._process is not None
        self._process.send_signal(signal.Signals[last(self.steps, "STOPSIGNAL").rest])
        return self._process.wait(30)

    def _build(self) -> None:
        stage, folder = "", "/"
        for step in self.steps:
            if step.name == "FROM":
                self._keep(stage)
                stage = step.rest.partition(" AS ")[2]
                folder = "/"
                self.root.mkdir()
            elif step.name == "WORKDIR":
                folder = step.rest
                self._at(folder).mkdir(parents=True, exist_ok=True)
            elif step.name == "COPY":
                self._copy(step.words, folder)
            elif step.name == "RUN":
                self._run(step.rest, folder)
            elif step.name == "ENV":
                name, _, value = step.rest.partition("=")
                self._variables[name] = value

    def _keep(self, stage: str) -> None:
        """End a stage: only what later ones copy from it is kept."""
        for step in self.steps:
            if step.name == "COPY" and step.words[0] == f"--from={stage}":
                kept = pathlib.Path(self._holder.name) / f"kept-{len(self._kept)}"
                shutil.move(self._at(step.words[1]), kept)
                self._kept[stage, step.words[1]] = kept
        shutil.rmtree(self.root, ignore_errors=True)

    def _copy(self, words: Sequence[str], folder: str) -> None:
        if words[0].startswith("--from="):
            target = self._at(words[2])
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(self._kept[words[0].removeprefix("--from="), words[1]], target)
            return
        assert words == [".", "."]
        ignored = (PROJECT / ".dockerignore").read_text().split()
        patterns = [each.removeprefix("**/") for each in ignored]

        def ignore(_: str, names: list[str]) -> set[str]:
            return {name for each in patterns for name in fnmatch.filter(names, each)}

        shutil.copytree(PROJECT, self._at(folder), ignore=ignore, dirs_exist_ok=True)

    def _run(self, script: str, folder: str) -> None:
        if os.geteuid() != 0:  # who may give files to nobody else
            script = script.replace("10001:10001", f"{os.getuid()}:{os.getgid()}")
        # What pip would get from the network this environment has, of the same lock file.
        done = subprocess.run(
            ["/bin/sh", "-ec", self._map(script)],
            cwd=self._at(folder),
            env=self._environment({}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout

    def _environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        path = f"{pathlib.Path(sys.executable).parent}:/usr/bin:/bin"
        return {"PATH": path, "PYTHONPATH": sysconfig.get_path("purelib"), **variables}

    def _user(self) -> list[str]:
        user, _, group = last(self.steps, "USER").rest.partition(":")
        if not self._is_root:
            return []
        return [
            "setpriv",
            f"--reuid={user}",
            f"--regid={group}",
            "--clear-groups",
            "--no-new-privs",
        ]

    def _at(self, path: str) -> pathlib.Path:
        return self.root / path.lstrip("/")

    def _map(self, text: str) -> str:
        return _PATH.sub(f"{self.root}/", text)


class BuiltContainer(Container):
    """An image that a builder has made of the file, run as the documentation says."""

    def __init__(self, builder: str) -> None:
        self._builder = builder
        self._folder = tempfile.TemporaryDirectory()
        self.port = find_port()
        self._name = f"treedb-test-{self.port}"
        self._do("build", "-f", str(CONTAINERFILE), "-t", self._name, str(PROJECT))

    def close(self) -> None:
        """Remove the container, its volume and the image."""
        for words in (("rm", "-f", "-v", self._name), ("rmi", "-f", self._name)):
            subprocess.run([self._builder, *words], capture_output=True, check=False)
        self._folder.cleanup()

    def start(self) -> None:
        """Run the image."""
        folder = pathlib.Path(self._folder.name)
        (folder / "treedb.toml").write_text(CONFIG.format(port=8080, data=""))
        (folder / "rules.json").write_text(RULES)
        folder.chmod(0o755)
        self._do(
            *("run", "-d", "--name", self._name, "--read-only", "--tmpfs", "/tmp"),
            *("--cap-drop", "all", "-p", f"127.0.0.1:{self.port}:8080"),
            *("-v", f"{folder}:/etc/treedb:ro", self._name),
        )
        wait_until(lambda: "treedb ready" in self._do("logs", self._name))

    def is_healthy(self) -> bool:
        """Run the health check in the container."""
        words = ["exec", self._name, *health_command(read_steps())]
        done = subprocess.run([self._builder, *words], capture_output=True, check=False)
        return done.returncode == 0

    def stop(self) -> int:
        """Stop the container."""
        self._do("stop", "-t", "30", self._name)
        return int(self._do("inspect", "--format", "{{.State.ExitCode}}", self._name))

    def _do(self, *words: str) -> str:
        done = subprocess.run(
            [self._builder, *words], capture_output=True, text=True, timeout=280, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def make_container() -> Container:
    """Return a container of the image, built as this machine can."""
    builder = find_builder()
    return ContainerByHand() if builder is None else BuiltContainer(builder)
