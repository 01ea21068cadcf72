"""What `treedb init` writes: configuration, secret, rules and a unit of systemd, as text.

The unit is the sample `treedb.service`, for the places of the plan. Nothing is written here, and no
file is read; `init` does that.
"""

from __future__ import annotations

import pathlib
import secrets
import shlex
import string
from collections.abc import Mapping
from typing import Final

import attrs

CONFIG_FILE: Final = "treedb.toml"
RULES_FILE: Final = "rules.json"
UNIT_FILE: Final = "treedb.service"
SECRET_BYTES: Final = 48

_CONFIG: Final = string.Template("""\
# The configuration of treedb: `treedb serve --config $config_file`, in this folder.
# Relative paths start from the folder of this file. All keys: `treedb init --print treedb.toml`.

# Plain HTTP, for this machine only: for a proxy such as nginx or Caddy, which has the certificate.
listen = ["tcp:$port:interface=127.0.0.1"]
# With that proxy, so that limits and the log have the addresses of clients and not the proxy's:
#trusted_proxies = ["127.0.0.1"]
# Without a proxy, with a certificate that the daemon's user can read; a port below 1024 needs a
# line in $unit_file too:
#listen = ["ssl:443:privateKey=key.pem:certKey=fullchain.pem"]

# Served are $name, which names no project, and $project.$name; without this key, all names.
${unless_domain}domains = ["$name"]

# The project of requests whose address names none.
default_project = "$project"

# The databases; the folder is created at the first start.
data = "data"

[projects.$project]
# It signs tokens: `treedb token --config $config_file --project $project --uid ada`.
secret_files = ["$secret_file"]
# After a change: `treedb rules check $rules_file`, then SIGHUP (`systemctl reload treedb`).
rules_file = "$rules_file"
""")

_RULES: Final = """\
{
  "rules": {
    // What no rule allows is denied; an admin's token is exempt from rules.
    "users": {
      "$uid": {
        // Whoever has a token with this uid owns this place.
        ".read": "auth != null && auth.uid === $uid",
        ".write": "auth != null && auth.uid === $uid"
      }
    }
  }
}
"""

_UNIT_HEAD: Final = string.Template("""\
# The unit of treedb for systemd, with a sandbox: `systemd-analyze security treedb` shows it. To
# install it, as root:
#     cp $unit_file /etc/systemd/system/ && systemctl daemon-reload
#     systemctl enable --now treedb
# Its log: journalctl -u treedb

""")
_HOMES: Final = ("/home/", "/root/", "/run/user/")


@attrs.frozen
class Plan:
    """What the files are for: a folder, and a project that is served at a port, by a user.

    `domain` is empty for none. `command` are the words that start `treedb`, by the `interpreter`.
    """

    folder: pathlib.Path
    project: str
    domain: str
    port: int
    user: str
    command: tuple[str, ...]
    interpreter: pathlib.Path

    @property
    def secret_file(self) -> str:
        """The name of the file of the secret."""
        return f"{self.project}.secret"

    def files(self, unit_sample: str) -> Mapping[str, str]:
        """Return the names of all files and what they hold; the secret is a new one each time."""
        return {
            CONFIG_FILE: _CONFIG.substitute(
                config_file=CONFIG_FILE,
                unit_file=UNIT_FILE,
                rules_file=RULES_FILE,
                secret_file=self.secret_file,
                project=self.project,
                name=self.domain or "db.example.com",
                unless_domain="" if self.domain else "#",
                port=self.port,
            ),
            self.secret_file: f"{secrets.token_urlsafe(SECRET_BYTES)}\n",
            RULES_FILE: _RULES,
            UNIT_FILE: self._unit(unit_sample),
        }

    def _unit(self, sample: str) -> str:
        """Return the unit for this folder, user and command, of one for the usual places."""
        folder = self.folder.absolute()
        command = " ".join(quote_for_unit(word, is_command=True) for word in self.command)
        config_file = quote_for_unit(str(folder / CONFIG_FILE), is_command=True)
        lines: dict[str, str | None] = {
            "User": f"User={self.user}",
            "ExecStart": f"ExecStart={command} serve --config {config_file}",
            # The data is in this folder, and systemd makes no other.
            "StateDirectory": f"ReadWritePaths={quote_for_unit(str(folder))}",
            **dict.fromkeys(
                ("StateDirectoryMode", "ConfigurationDirectory", "ConfigurationDirectoryMode")
            ),
        }
        used = (folder, self.interpreter, *self.command)
        if any(str(each).startswith(_HOMES) for each in used):
            lines["ProtectHome"] = "ProtectHome=read-only"
        head = _UNIT_HEAD.substitute(unit_file=shlex.quote(str(folder / UNIT_FILE)))
        return head + _replace_lines(sample[sample.index("[Unit]") :], lines)


def _replace_lines(unit: str, lines: Mapping[str, str | None]) -> str:
    """Return a unit with other lines in place of those of some keys, None for no line."""
    replaced = (lines.get(line.partition("=")[0], line) for line in unit.splitlines())
    return "".join(f"{line}\n" for line in replaced if line is not None)


def quote_for_unit(word: str, *, is_command: bool = False) -> str:
    """Return a word as systemd reads it back (systemd.syntax and systemd.service).

    `%` and, in a command line, `$` are doubled, because they introduce something else.
    """
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    if is_command:
        escaped = escaped.replace("$", "$$")
    return f'"{escaped}"' if set(escaped) & set(" \t'\"\\") else escaped
