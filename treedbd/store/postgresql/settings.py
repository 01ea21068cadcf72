"""How the daemon connects to PostgreSQL: the connection string, checked, with what treedb adds.

A connection string is a URL or `key=value` pairs, as libpq reads them, and may name several hosts.
A password in it would be in the configuration, in the list of processes and in reports of errors,
so it is refused: libpq finds passwords in its password file or in a service file.
"""

from __future__ import annotations

import math
from typing import Any, Final

import attrs
import psycopg
from psycopg.conninfo import conninfo_to_dict

from treedbd.errors import OperatorError

SCHEMA: Final = "treedb"
"""The schema of all tables, and the name of the application and of the channel of hints."""
DEFAULT_PATIENCE_S: Final = 5.0
IDLE_MS: Final = 10_000
"""A daemon that stops in the middle of a transaction loses it, and its locks, after this time."""
_SECRETS: Final = {"password", "sslpassword"}
_BALANCING_LIBPQ: Final = 160_000

_DEFAULTS: Final = {
    "target_session_attrs": "read-write",
    "application_name": SCHEMA,
    "connect_timeout": "2",  # for each host: a frozen one accepts connections, and no more
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
}


@attrs.frozen
class PostgresqlSettings:
    """How to connect, and how long to wait.

    Attributes:
        dsn: the connection string, without a password.
        patience_s: seconds until an answer counts as lost; a copy of a whole database may take
            longer, but not longer than this between two pieces.
        is_strict: whether nothing that was read is believed before a standby has confirmed a
            transaction that was sent after the read.
        is_cluster: whether the operator has declared that there are synchronous standbys.
        commit_connections: how many commits of different databases can be under way at once.

    """

    dsn: str
    patience_s: float = DEFAULT_PATIENCE_S
    is_strict: bool = True
    is_cluster: bool = False
    commit_connections: int = 4

    def __attrs_post_init__(self) -> None:
        parse_dsn(self.dsn)

    @property
    def subject(self) -> str:
        """What messages call the server: its database and hosts."""
        parameters = parse_dsn(self.dsn)
        hosts = parameters.get("host") or parameters.get("service") or "the local host"
        return f"The PostgreSQL database {parameters.get('dbname', 'of the user')} on {hosts}"

    def parameters(self) -> dict[str, Any]:
        """Return the parameters of a connection, as libpq takes them."""
        given = parse_dsn(self.dsn)
        patience_ms = math.ceil(self.patience_s * 1000)
        limits = {"tcp_user_timeout": str(patience_ms)}
        session = {
            "search_path": SCHEMA,
            # A role may have another default, with which a commit does not wait for the standbys.
            "synchronous_commit": "on",
            "default_transaction_isolation": r"read\ committed",
            # Neither ends the wait of a COMMIT for the standbys, which must not be cancelled: the
            # server stops these clocks when a statement has been executed.
            "statement_timeout": str(patience_ms),
            "lock_timeout": str(patience_ms),
            "idle_in_transaction_session_timeout": str(IDLE_MS),
        }
        options = [str(given.pop("options", "")), *(f"-c {k}={v}" for k, v in session.items())]
        if psycopg.pq.version() >= _BALANCING_LIBPQ:
            # After a fail-over the old primary may still run, cut off: do not always choose it.
            limits["load_balance_hosts"] = "random"
        return {**_DEFAULTS, **limits, **given, "options": " ".join(options).strip()}


def parse_dsn(dsn: str) -> dict[str, Any]:
    """Return the parameters of a connection string; raise `OperatorError`."""
    try:
        parameters: dict[str, Any] = conninfo_to_dict(dsn)
    except psycopg.Error:
        # Not the text of the error: it repeats the string, which may hold a password.
        raise OperatorError(
            "The connection string of PostgreSQL",
            "cannot be read",
            "write a URL such as postgresql://treedb@host1,host2/treedb",
        ) from None
    if not parameters.keys().isdisjoint(_SECRETS):
        raise OperatorError(
            "The connection string of PostgreSQL",
            "holds a password",
            "put the password into the file that PGPASSFILE names, or into a service file",
        )
    return parameters
