"""Connections over TLS: by a front that speaks TLS as a server of PostgreSQL does."""

from __future__ import annotations

import contextlib
import pathlib
import socket
import ssl
import threading
from collections.abc import Iterator

import pytest
import trustme

from tests.closing import Closing
from tests.postgresql import PostgresqlServers
from treedbd.store.engine import StoreUnreachable
from treedbd.store.postgresql.connection import PostgresqlSettings
from treedbd.store.postgresql.schema import prepare_schema

SSL_REQUEST = bytes.fromhex("0000000804d2162f")
PIECE_BYTES = 65_536


class TlsFront(Closing):
    """Listens on a port of its own, and passes what it decrypts on to a server.

    Attributes:
        port: where it listens.
        count: how many connections were encrypted.

    """

    def __init__(self, context: ssl.SSLContext, server_port: int) -> None:
        """Begin to listen; certificates are those of `context`."""
        self._context = context
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.count = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept no connection any more."""
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            if client.recv(len(SSL_REQUEST), socket.MSG_WAITALL) != SSL_REQUEST:
                return  # it does not want TLS
            client.sendall(b"S")
            with (
                self._context.wrap_socket(client, server_side=True) as secure,
                socket.create_connection(("127.0.0.1", self._server_port)) as server,
            ):
                self.count += 1
                back = threading.Thread(target=_pass_on, args=(server, secure), daemon=True)
                back.start()
                _pass_on(secure, server)
                back.join()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(PIECE_BYTES):
            target.sendall(piece)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def front(authority: trustme.CA, clean_server: PostgresqlServers) -> Iterator[TlsFront]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(context)
    with TlsFront(context, clean_server.primary.port) as running:
        yield running


def settings_of(front: TlsFront, folder: pathlib.Path, trusted: trustme.CA) -> PostgresqlSettings:
    file = folder / "ca.pem"
    trusted.cert_pem.write_to_path(str(file))
    dsn = f"postgresql://treedb@localhost:{front.port}/treedb"
    return PostgresqlSettings(f"{dsn}?sslmode=verify-full&sslrootcert={file}")


def test_a_server_is_verified_by_the_authority_that_the_url_names(
    front: TlsFront, authority: trustme.CA, tmp_path: pathlib.Path
) -> None:
    assert len(prepare_schema(settings_of(front, tmp_path, authority))) == 16
    assert front.count == 1


def test_a_server_with_a_certificate_of_another_authority_is_not_asked(
    front: TlsFront, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(StoreUnreachable) as caught:
        prepare_schema(settings_of(front, tmp_path, trustme.CA()))
    assert str(caught.value) == "PostgreSQL cannot be reached."


def test_a_server_without_tls_is_not_asked(
    clean_server: PostgresqlServers, authority: trustme.CA, tmp_path: pathlib.Path
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with TlsFront(context, clean_server.primary.port) as front:
        dsn = settings_of(front, tmp_path, authority).dsn
        plain = dsn.replace(str(front.port), str(clean_server.primary.port))
        with pytest.raises(StoreUnreachable):
            prepare_schema(PostgresqlSettings(plain))
