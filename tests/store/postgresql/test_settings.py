from __future__ import annotations

import pytest

from treedbd.errors import OperatorError
from treedbd.store.postgresql.connection import PostgresqlSettings


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://treedb:secret@db1/treedb",
        "host=db1 user=treedb password=secret",
        "postgresql://treedb@db1/treedb?password=secret",
        "host=db1 user=treedb sslkey=k sslpassword=secret",
        "postgresql://treedb:@db1,db2/treedb?password=secret",
    ],
)
def test_a_password_is_refused_and_not_repeated(dsn: str) -> None:
    with pytest.raises(OperatorError, match="holds a password: put the password into") as caught:
        PostgresqlSettings(dsn)
    assert "secret" not in str(caught.value)


def test_what_is_no_connection_string_is_refused_and_not_repeated() -> None:
    with pytest.raises(OperatorError, match="cannot be read") as caught:
        PostgresqlSettings("postgresql://treedb:secret@[db1/treedb")
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_the_operator_decides_and_treedb_adds() -> None:
    given = PostgresqlSettings(
        "postgresql://u@db1,db2/name?sslmode=verify-full&application_name=mine&options=-c%20x%3Dy",
        patience_s=1.5,
    ).parameters()
    assert (given["host"], given["dbname"], given["sslmode"]) == ("db1,db2", "name", "verify-full")
    assert given["application_name"] == "mine"
    assert given["target_session_attrs"] == "read-write"
    assert given["tcp_user_timeout"] == "1500"
    assert given["options"].startswith("-c x=y -c search_path=treedb -c synchronous_commit=on")
    assert "statement_timeout=1500" in given["options"]


def test_messages_name_the_database_and_its_hosts() -> None:
    subject = PostgresqlSettings("postgresql://u@db1,db2/name").subject
    assert subject == "The PostgreSQL database name on db1,db2"
