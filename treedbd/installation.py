"""How this copy of treedb was installed, what adds an extra to it, and the files beside its code.

The name of the distribution is not that of the command: `treedb` on the package index belongs to
another project.
"""

from __future__ import annotations

import json
import pathlib
import shlex
import sys
from importlib import import_module
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Final

import attrs

DISTRIBUTION: Final = "treedbd"

SAMPLES: Final = (
    "Caddyfile",
    "Containerfile",
    "certbot-deploy-hook",
    "compose.yaml",
    "grafana-dashboard.json",
    "nginx.conf",
    "prometheus-alerts.yml",
    "treedb.service",
    "treedb.socket",
    "treedb.sysusers",
    "treedb.tmpfiles",
    "treedb.toml",
)
"""The files of `conf/`, which operators copy and change."""

_CHECKOUT: Final = pathlib.Path(__file__).parents[1]


@attrs.frozen
class Installation:
    """A copy of treedb: the environment of Python that it is in, and the tool that put it there.

    `source` says where the distribution came from: None for the index, else a URL as `pip` takes
    it. `checkout` is the folder of an editable installation, None for any other.
    """

    prefix: pathlib.Path
    python: str
    installer: str = "pip"
    source: str | None = None
    checkout: pathlib.Path | None = None

    def line_for(self, extra: str) -> str:
        """Return the command line that adds an extra, and with it the libraries that it names."""
        return f"{self._command()} {self._requirement(extra)}"

    def _command(self) -> str:
        if (self.prefix / "pipx_metadata.json").exists():
            return "pipx install --force"  # without it pipx leaves what is there as it is
        if (self.prefix / "uv-receipt.toml").exists():
            return "uv tool install"
        if self.installer == "uv":
            return f"uv pip install --python {shlex.quote(self.python)}"
        return f"{shlex.quote(self.python)} -m pip install"

    def _requirement(self, extra: str) -> str:
        if self.checkout is not None:
            return f"--editable {shlex.quote(f'{self.checkout}[{extra}]')}"
        source = "" if self.source is None else f" @ {self.source}"
        return shlex.quote(f"{DISTRIBUTION}[{extra}]{source}")


def read_installation() -> Installation:
    """Return how the copy that runs was installed."""
    # Only an error needs it, and every command would wait for its import.
    metadata = import_module("importlib.metadata")
    prefix = pathlib.Path(sys.prefix)
    try:
        found = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:  # the path of Python leads to a checkout
        return Installation(prefix, sys.executable, checkout=_CHECKOUT)
    installer = (found.read_text("INSTALLER") or "pip").strip()
    # PEP 610; what came from the index has no such file.
    origin = json.loads(found.read_text("direct_url.json") or "{}")
    checkout = _CHECKOUT if origin.get("dir_info", {}).get("editable") else None
    return Installation(prefix, sys.executable, installer, _source(origin), checkout)


def find_project_file(path: str) -> Traversable:
    """Return a file of `docs/` or `conf/`, or a page beside them, by its path in a checkout.

    A wheel holds copies of them. The file may be missing.
    """
    copies = files("treedbd") / "project"
    return (copies if copies.is_dir() else _CHECKOUT) / path


def _source(origin: dict[str, Any]) -> str | None:
    if "url" not in origin:
        return None
    url, repository = origin["url"], origin.get("vcs_info")
    if repository is None:
        return str(url)
    revision = repository.get("requested_revision", repository["commit_id"])
    return f"{repository['vcs']}+{url}@{revision}"
