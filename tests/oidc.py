"""A real OpenID provider for tests: https on loopback, with a certificate authority of its own.

It serves from a thread, so that it can respond to a daemon while the test waits for the daemon. Its
attributes and methods make it misbehave.
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
    """Return the authority that signs the certificates of providers."""
    return trustme.CA()


def authority_pem() -> bytes:
    """Return the certificate of the authority, in PEM."""
    return authority().cert_pem.bytes()


@cache
def private_key(algorithm: str, number: int = 0) -> PrivateKey:
    """Return a private key for RS256 or ES256, the same for the same number."""
    if algorithm == "RS256":
        return rsa.generate_private_key(65537, 2048)
    return ec.generate_private_key(ec.SECP256R1())


def public_jwk(key: PrivateKey, **members: Any) -> dict[str, Any]:
    """Return the public half of a key as a JWK, with further members."""
    if isinstance(key, rsa.RSAPrivateKey):
        jwk = RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    else:
        jwk = ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return {**jwk, "use": "sig", **members}


def without_none(members: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members that are not None."""
    return {name: member for name, member in members.items() if member is not None}


@attrs.frozen
class SigningKey:
    """A key that a provider signs with."""

    key_id: str
    algorithm: str
    private: PrivateKey


@attrs.frozen
class Answer:
    """A response instead of a document; with `is_held` the connection stays open after it."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = attrs.Factory(dict)
    is_held: bool = False


class OidcProvider(Closing):
    """A provider that serves while its context is open.

    `certified_for` is the name in its certificate, or a certificate. `requests` are the paths of
    the requests that it received, `server_names` the hosts that clients sent in TLS (RFC 6066,
    section 3). `answers` replace its documents, by path.
    """

    def __init__(
        self, certified_for: str | trustme.LeafCert = LOOPBACK, algorithm: str = "RS256"
    ) -> None:
        """Prepare; `start` starts it, on a port that it keeps."""
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
        self._may_respond = threading.Event()
        self._may_respond.set()
        self.rotate(algorithm)

    def __enter__(self) -> Self:
        """Start the provider."""
        self.start()
        return self

    def close(self) -> None:
        """Let waiting requests finish, and stop."""
        self.go_on()
        self.stop()

    @property
    def issuer(self) -> str:
        """The issuer in its tokens."""
        return f"https://{LOOPBACK}:{self.port}"

    @property
    def keys_uri(self) -> str:
        """The URL of its key set."""
        return self.issuer + KEYS

    def start(self) -> None:
        """Listen and serve."""
        server = _ProviderServer((LOOPBACK, self.port), _ProviderHandler, provider=self)
        server.socket = self._tls.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
        self.port = server.server_address[1]
        self._server = server
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        """Stop serving: connections are refused from now on."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def hang(self) -> None:
        """Respond to no request until `go_on`."""
        self._may_respond.clear()

    def go_on(self) -> None:
        """Respond again."""
        self._may_respond.set()

    def wait(self) -> None:
        """Wait while it hangs."""
        self._may_respond.wait(HANG_SECONDS)

    def rotate(self, algorithm: str = "RS256") -> None:
        """Sign with a new key, and publish only that."""
        number = next(_numbers)
        # Generating keys is slow, so two alternate; only their ids are always new.
        private = private_key(algorithm, number % 2)
        self.signing = SigningKey(f"key-{number}", algorithm, private)
        self.published = [self.signing]

    def token(self, *, header: Mapping[str, Any] | None = None, **claims: Any) -> str:
        """Return a token of this provider, valid for an hour unless the claims say otherwise.

        A claim or a member of the header that is None is omitted.
        """
        now = int(time.time())
        usual = {"iss": self.issuer, "aud": AUDIENCE, "sub": "alice", "iat": now, "exp": now + 3600}
        # Encoded as JSON here, because PyJWT refuses to sign claims that are invalid.
        return jwt.api_jws.encode(
            json.dumps(without_none({**usual, **claims})).encode(),
            self.signing.private,
            algorithm=self.signing.algorithm,
            headers=without_none({"kid": self.signing.key_id, **(header or {})}),
        )

    def answer(self, path: str) -> Answer:
        """Return the response to a GET; wait while the provider hangs."""
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


class _ProviderServer(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, *arguments: Any, provider: OidcProvider) -> None:
        self.provider = provider
        super().__init__(*arguments)

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: tests disconnect clients on purpose."""


class _ProviderHandler(http.server.BaseHTTPRequestHandler):
    server: _ProviderServer

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
        """Print nothing."""
