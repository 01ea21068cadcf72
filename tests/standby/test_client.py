"""The requests of a standby to its first: what certifies that one, and what is said if nothing."""

from __future__ import annotations

import datetime
import pathlib
from typing import Any, Final

import pytest
import pytest_twisted
import trustme
from twisted.internet import reactor as installed_reactor
from twisted.internet.protocol import Factory, Protocol

from tests.oidc import KEYS, OidcProvider, authority, authority_pem
from treedbd.standby.client import FirstClient, FirstFailed
from treedbd.web.auth.fetch import AuthorityFile, TrustStore, parse_authority

reactor: Any = installed_reactor
DAY: Final = datetime.timedelta(days=1)
NOW: Final = datetime.datetime.now(datetime.UTC)


def client_of(server: OidcProvider, trust: AuthorityFile | TrustStore) -> FirstClient:
    def token_of(_: str) -> str:
        return "token"

    return FirstClient(reactor, server.issuer, trust.creator_for, token_of, projects=["shop"])


async def ask(client: FirstClient) -> int:
    return (await client.ask("GET", KEYS, "shop")).status


@pytest_twisted.ensureDeferred
async def test_the_file_of_authorities_is_read_for_each_connection(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "ca.pem"
    other = trustme.CA().cert_pem.bytes()
    file.write_bytes(other)
    with OidcProvider() as server:
        client = client_of(server, AuthorityFile(file, "an authority of standby_ca_file"))
        with pytest.raises(FirstFailed, match=r"not signed by an authority of standby_ca_file$"):
            await ask(client)
        file.write_bytes(other + authority_pem())
        assert await ask(client) in (200, 404)
        for content in (b"", b"half a certif"):
            file.write_bytes(content)
            assert await ask(client) in (200, 404)  # what was read before counts
        file.unlink()
        assert await ask(client) in (200, 404)
        file.write_bytes(other)
        with pytest.raises(FirstFailed, match="not signed"):
            await ask(client)


class Plain(Protocol):
    """Answers any bytes as a server without TLS does."""

    def dataReceived(self, data: bytes) -> None:
        del data
        assert self.transport is not None
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


@pytest_twisted.ensureDeferred
async def test_a_port_without_tls_is_named() -> None:
    port = reactor.listenTCP(0, Factory.forProtocol(Plain), interface="127.0.0.1")
    url = f"https://127.0.0.1:{port.getHost().port}"
    client = FirstClient(reactor, url, TrustStore().creator_for, str, projects=["shop"])
    with pytest.raises(FirstFailed, match="it does not speak TLS at this port"):
        await ask(client)
    await port.stopListening()


@pytest.mark.parametrize(
    ("begin", "end", "reason"),
    [(-2, -1, "its certificate has expired"), (1, 2, "its certificate is not valid yet")],
)
@pytest_twisted.ensureDeferred
async def test_a_certificate_out_of_its_time_is_named(begin: int, end: int, reason: str) -> None:
    made = authority().issue_cert(
        "127.0.0.1", not_before=NOW + begin * DAY, not_after=NOW + end * DAY
    )
    with OidcProvider(made) as server:
        store = TrustStore(parse_authority(authority_pem()))
        with pytest.raises(FirstFailed, match=f"^{reason}$"):
            await ask(client_of(server, store))
