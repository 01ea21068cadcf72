"""A real OpenID provider for tests: https on loopback, with an authority of its own.

It serves from a thread, so that it answers a daemon while the test waits for the daemon. What it
does wrong, it is told to do by its attributes and methods.
"""

from __future__ import annotations

import http.server
import json
import ssl
import threading
import time
from collections.abc import Mapping
from functools import cache
from itertools import count
from typing import Any, Final, Self, TypeAlias

import attrs
import jwt
import trustme
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from tests.closing import Closing

DISCOVERY: Final = "/.well-known/openid-configuration"
KEYS: Final = "/keys.json"
AUDIENCE: Final = "shop"
HANG_SECONDS: Final = 60
LOOPBACK: Final = "127.0.0.1"

PrivateKey: TypeAlias = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey

_numbers = count()


@cache
def authority() -> trustme.CA:
    """The authority that signs the certificates of providers."""
    return trustme.CA()


def authority_pem() -> bytes:
    """The certificate of the authority, in PEM."""
    return authority().cert_pem.bytes()


@cache
def private_key(algorithm: str, number: int = 0) -> PrivateKey:
    """One of any number of private keys for RS256 or ES256."""
    if algorithm == "RS256":
        return rsa.generate_private_key(65537, 2048)
    return ec.generate_private_key(ec.SECP256R1())


def public_jwk(key: PrivateKey, **members: Any) -> dict[str, Any]:
    """The public half of a key as a JWK, with further members."""
    if isinstance(key, rsa.RSAPrivateKey):
        jwk = RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    else:
        jwk = ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return {**jwk, "use": "sig", **members}


def without_none(members: Mapping[str, Any]) -> dict[str, Any]:
    """The members that are not None."""
    return {name: member for name, member in members.items() if member is not None}


@attrs.frozen
class SigningKey:
    """A key that a provider signs with."""

    key_id: str
    algorithm: str
    private: PrivateKey


@attrs.frozen
class Answer:
    """What is answered in place of a document; `is_held` keeps the connection open after it."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = attrs.Factory(dict)
    is_held: bool = False


class OidcProvider(Closing):
    """A provider that serves while its context is open.

    `certified_for` is the name in its certificate, or a certificate. `requests` are the paths it
    was asked for, `server_names` the hosts that clients named in TLS (RFC 6066, section 3);
    `answers` are given instead of its documents, by path.
    """

    def __init__(
        self, certified_for: str | trustme.LeafCert = LOOPBACK, algorithm: str = "RS256"
    ) -> None:
        """Prepare; `start` starts it, at a port that it keeps."""
        self.requests: list[str] = []
        self.server_names: list[str | None] = []
        self.answers: dict[str, Answer] = {}
        self.announced_issuer: str | None = None
        self.signing = SigningKey("", "", private_key("ES256"))
        self.published: list[SigningKey] = []
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if isinstance(certified_for, str):
            certified_for = authority().issue_cert(certified_for)
        certified_for.configure_cert(self._tls)
        self._tls.sni_callback = lambda _, name, __: self.server_names.append(name)
        self.port = 0
        self._server: http.server.ThreadingHTTPServer | None = None
        self._is_going_on = threading.Event()
        self._is_going_on.set()
        self.rotate(algorithm)

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def close(self) -> None:
        """Stop, and let go who hangs."""
        self.go_on()
        self.stop()

    @property
    def issuer(self) -> str:
        """What its tokens name as their issuer."""
        return f"https://{LOOPBACK}:{self.port}"

    @property
    def keys_uri(self) -> str:
        """Where its key set is."""
        return self.issuer + KEYS

    def start(self) -> None:
        """Listen, and serve."""
        server = _Server((LOOPBACK, self.port), _Conversation, provider=self)
        server.socket = self._tls.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
        self.port = server.server_address[1]
        self._server = server
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        """Die: refuse connections from now on."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def hang(self) -> None:
        """Answer nobody until `go_on`."""
        self._is_going_on.clear()

    def go_on(self) -> None:
        """Answer again."""
        self._is_going_on.set()

    def wait(self) -> None:
        """Wait while it hangs."""
        self._is_going_on.wait(HANG_SECONDS)

    def rotate(self, algorithm: str = "RS256") -> None:
        """Sign with a new key, and publish no other."""
        number = next(_numbers)
        # Keys take time to make; two taken in turn are as good as ever new ones, ids apart.
        private = private_key(algorithm, number % 2)
        self.signing = SigningKey(f"key-{number}", algorithm, private)
        self.published = [self.signing]

    def token(self, *, header: Mapping[str, Any] | None = None, **claims: Any) -> str:
        """A token of its, good for an hour unless the claims say otherwise.

        A claim or a member of the header that is None is left out.
        """
        now = int(time.time())
        usual = {"iss": self.issuer, "aud": AUDIENCE, "sub": "alice", "iat": now, "exp": now + 3600}
        # Encoded as JSON here, because the library refuses to sign what is to be refused.
        return jwt.api_jws.encode(
            json.dumps(without_none({**usual, **claims})).encode(),
            self.signing.private,
            algorithm=self.signing.algorithm,
            headers=without_none({"kid": self.signing.key_id, **(header or {})}),
        )

    def answer(self, path: str) -> Answer:
        """What it answers to a GET; waits while it hangs."""
        self.requests.append(path)
        self.wait()
        if path in self.answers:
            return self.answers[path]
        if path == DISCOVERY:
            issuer = self.announced_issuer or self.issuer
            return Answer(json.dumps({"issuer": issuer, "jwks_uri": self.keys_uri}).encode())
        if path == KEYS:
            jwks = [public_jwk(key.private, kid=key.key_id) for key in self.published]
            return Answer(json.dumps({"keys": jwks}).encode())
        return Answer(status=404)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, *arguments: Any, provider: OidcProvider) -> None:
        self.provider = provider
        super().__init__(*arguments)

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: clients leave, that is part of the tests."""


class _Conversation(http.server.BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        answer = self.server.provider.answer(self.path)
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if "Content-Length" not in answer.headers:
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)
        if answer.is_held:
            self.server.provider.hang()
            self.server.provider.wait()

    def log_message(self, *_: object) -> None:
        """Say nothing."""
