"""nginx and Caddy as they come with Debian, before a daemon, with the files in `conf/`.

Only what an operator replaces is replaced: names, ports and certificates. They run in the
foreground with all their files in the folder of the test, and listen on loopback only.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
import ssl
import subprocess
import time
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPResponse
from types import MappingProxyType
from typing import Final

import trustme

from tests.closing import Closing
from tests.daemon import Response
from tests.rest import PATIENCE_S, Wire
from tests.system import find_port

CONF: Final = pathlib.Path(__file__).parent.parent / "conf"
DOMAIN: Final = "db.example.com"
START_SECONDS: Final = 120

_NGINX_MAIN: Final = """
daemon off;
{user}
worker_processes 2;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 512; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    scgi_temp_path {folder}/scgi;
    uwsgi_temp_path {folder}/uwsgi;
    include {folder}/treedb.conf;
}}
"""
_CADDY_MAIN: Final = """
{{
	admin off
	grace_period 1s
	auto_https off
	storage file_system {folder}/storage
}}
import {folder}/Caddyfile
"""


class Front(Closing):
    """A running proxy with TLS.

    Attributes:
        port: where it listens, on 127.0.0.1.
        ca: what verifies its certificate, in PEM.

    """

    def __init__(self, folder: pathlib.Path) -> None:
        """Prepare certificate and port in a folder of its own."""
        folder.mkdir()
        self.folder = folder
        self.port = find_port()
        authority = trustme.CA()
        self.ca = folder / "ca.pem"
        authority.cert_pem.write_to_path(str(self.ca))
        leaf = authority.issue_cert(DOMAIN, f"*.{DOMAIN}")
        leaf.private_key_pem.write_to_path(str(folder / "key.pem"))
        for number, pem in enumerate(leaf.cert_chain_pems):
            pem.write_to_path(str(folder / "chain.pem"), append=number > 0)
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, *command: str) -> None:
        """Start it, and wait until it accepts connections."""
        with (self.folder / "output.log").open("wb") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except ConnectionRefusedError:
                assert self._process.poll() is None, self._read_logs()
                assert time.monotonic() < end, self._read_logs()
                time.sleep(0.01)
            else:
                return

    def close(self) -> None:
        """Stop it."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(START_SECONDS)

    def adapt(self, file: str, replaced: Mapping[str, str]) -> str:
        """Return a file of `conf/`, with what an operator replaces in it."""
        text = (CONF / file).read_text()
        certificates = {
            f"/etc/letsencrypt/live/{DOMAIN}/fullchain.pem": str(self.folder / "chain.pem"),
            f"/etc/letsencrypt/live/{DOMAIN}/privkey.pem": str(self.folder / "key.pem"),
        }
        for old, new in (certificates | dict(replaced)).items():
            assert old in text, old
            text = text.replace(old, new)
        return text

    def client(self, database: str, address: str = "127.0.0.2") -> ProxyClient:
        """Return a client for a database, which connects from an address of loopback."""
        return ProxyClient(self, f"{database}.{DOMAIN}", address)

    def _read_logs(self) -> str:
        return "\n".join(file.read_text() for file in self.folder.glob("*.log"))


class ProxyClient(Closing):
    """Sends requests for one host to a proxy, from one address of this machine.

    Attributes:
        host: the Host header.

    """

    def __init__(self, front: Front, name: str, address: str) -> None:
        """Connect."""
        self.host: Final = f"{name}:{front.port}"
        self._front = front
        self._name = name
        self._address = address
        self._connection = HTTPConnection(name, front.port)
        self._socket = self._open_socket()
        self._connection.sock = self._socket

    def connect(self) -> Wire:
        """Return another connection."""
        return Wire(self._open_socket())

    def open(
        self,
        method: str,
        target: str,
        body: bytes | str | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> HTTPResponse:
        """Send a request; return its response, whose body can be read as it comes."""
        self._connection.request(method, target, body, {"Host": self.host, **headers})
        return self._connection.getresponse()

    def request(
        self,
        method: str,
        target: str,
        body: bytes | str | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> Response:
        """Send a request; return its whole response."""
        response = self.open(method, target, body, headers)
        return Response(response.status, response.headers, response.read())

    def _open_socket(self) -> ssl.SSLSocket:
        source = (self._address, 0)
        port = self._front.port
        connected = socket.create_connection(("127.0.0.1", port), PATIENCE_S, source_address=source)
        context = ssl.create_default_context(cafile=str(self._front.ca))
        return context.wrap_socket(connected, server_hostname=self._name)

    def close(self) -> None:
        """Close the connection, also if something reads from it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._connection.close()


def start_nginx(
    folder: pathlib.Path, upstream: str, others: Mapping[str, str] = MappingProxyType({})
) -> Front:
    """Return a running nginx before the daemon at `upstream`, as nginx writes an address.

    `others` are lines of its file, and what they are replaced by.
    """
    front = Front(folder)
    replaced = {
        **others,
        "listen 443 ssl http2;": f"listen 127.0.0.1:{front.port} ssl http2;",
        "listen [::]:443 ssl http2;": "",
        "server 127.0.0.1:8080;": f"server {upstream};",
    }
    user = "" if os.geteuid() else "user root root;"  # who owns the folder, and so the socket
    (folder / "treedb.conf").write_text(front.adapt("nginx.conf", replaced))
    (folder / "nginx.conf").write_text(_NGINX_MAIN.format(folder=folder, user=user))
    front.run("/usr/sbin/nginx", "-e", f"{folder}/error.log", "-c", f"{folder}/nginx.conf")
    return front


def start_caddy(folder: pathlib.Path, upstream: str) -> Front:
    """Return a running Caddy before the daemon at `upstream`."""
    front = Front(folder)
    sites = ", ".join(f"https://{name}:{front.port}" for name in (DOMAIN, f"*.{DOMAIN}"))
    replaced = {
        f"{DOMAIN}, *.{DOMAIN} {{": f"{sites} {{\n\tbind 127.0.0.1",
        "127.0.0.1:8080": upstream,
    }
    (folder / "Caddyfile").write_text(front.adapt("Caddyfile", replaced))
    main = folder / "main"
    main.write_text(_CADDY_MAIN.format(folder=folder))
    front.run("caddy", "run", "--adapter", "caddyfile", "--config", str(main))
    return front
