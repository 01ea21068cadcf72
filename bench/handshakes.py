"""What a new TLS connection costs: full and resumed handshakes, by key and version.

    .venv/bin/python bench/handshakes.py [--connections N]

One treedb has an endpoint for each key. One client after the other connects, sends one small
request, and closes; what counts is the processor time of treedb, so that a busy machine and the
client do not disturb. `a second` is how many of these connections one core serves. The same
requests over a connection that is kept are taken off for `handshake`.
"""

from __future__ import annotations

import argparse
import datetime
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

import trustme
from OpenSSL import SSL

KEYS = {"rsa": trustme.KeyType.RSA, "ec": trustme.KeyType.ECDSA}
VERSIONS = {"1.2": SSL.TLS1_2_VERSION, "1.3": SSL.TLS1_3_VERSION}
ROUNDS = 3
REQUEST = b"GET /.json HTTP/1.1\r\nHost: localhost\r\n\r\n"


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=400)
    count = parser.parse_args().connections
    with tempfile.TemporaryDirectory() as folder:
        process, ports = start(Path(folder))
        try:
            plain_s = measure(process.pid, count, lambda: exchange_kept(ports["ec"], count))
            print(f"a request alone: {plain_s * 1e6:.0f} µs")
            for key, port in ports.items():
                for version in VERSIONS:
                    for resumes in (False, True):
                        client = Client(port, version, resumes=resumes)
                        client.run(20)
                        cost_s = measure(
                            process.pid, count, lambda client=client: client.run(count)
                        )
                        kind = "resumed" if resumes else "full"
                        print(
                            f"{key:4} TLS {version} {kind:8} {1 / cost_s:6.0f} a second, "
                            f"handshake {(cost_s - plain_s) * 1e3:.2f} ms ({client.group})"
                        )
        finally:
            process.kill()
            process.wait()


class Client:
    """Opens connections one after the other."""

    def __init__(self, port: int, version: str, *, resumes: bool) -> None:
        """Connect to a port with one version; if it `resumes`, by the session before."""
        self.group = ""
        self._port = port
        self._resumes = resumes
        self._session: SSL.Session | None = None
        self._context = SSL.Context(SSL.TLS_CLIENT_METHOD)
        self._context.set_min_proto_version(VERSIONS[version])
        self._context.set_max_proto_version(VERSIONS[version])

    def run(self, count: int) -> None:
        """Connect, send a request, receive the answer, close; `count` times."""
        for _ in range(count):
            with socket.create_connection(("127.0.0.1", self._port)) as opened:
                secured = SSL.Connection(self._context, opened)
                secured.set_connect_state()
                if self._session is not None:
                    secured.set_session(self._session)
                secured.do_handshake()
                secured.sendall(REQUEST)
                secured.recv(65536)
                self.group = secured.get_group_name() or ""
                if self._resumes:
                    self._session = secured.get_session()
                secured.shutdown()


def exchange_kept(port: int, count: int) -> None:
    """Send the same requests over one connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with context.wrap_socket(socket.create_connection(("127.0.0.1", port))) as secured:
        for _ in range(count):
            secured.sendall(REQUEST)
            secured.recv(65536)


def measure(pid: int, count: int, run: object) -> float:
    """Return the seconds of processor time of a process for each of `count`, of the best round."""
    assert callable(run)
    costs = []
    for _ in range(ROUNDS):
        before = cpu_s(pid)
        run()
        costs.append((cpu_s(pid) - before) / count)
    return min(costs)


def cpu_s(pid: int) -> float:
    """Return the seconds of processor time that a process has used."""
    times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")


def start(folder: Path) -> tuple[subprocess.Popen[str], dict[str, int]]:
    """Start a treedb with an endpoint for each key; return their ports."""
    authority = trustme.CA()
    end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=80)
    words = [sys.executable, "-m", "treedbd", "serve", "--data", str(folder / "data")]
    (folder / "treedb.toml").write_text('default_project = "demo"\n[projects.demo]\n')
    words += ["--config", str(folder / "treedb.toml")]
    for key, kind in KEYS.items():
        file = folder / f"{key}.pem"
        issued = authority.issue_cert("localhost", key_type=kind, not_after=end)
        issued.private_key_and_cert_chain_pem.write_to_path(file)
        words += ["--listen", f"ssl:0:interface=127.0.0.1:privateKey={file}:certKey={file}"]
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=folder
    )
    assert process.stdout is not None
    until = time.monotonic() + 60
    while time.monotonic() < until:
        line = process.stdout.readline()
        if line.startswith("treedb ready "):
            ports = [urlsplit(url).port or 0 for url in line.split()[2:]]
            return process, dict(zip(KEYS, ports, strict=True))
    raise RuntimeError("treedb did not start.")


if __name__ == "__main__":
    main()
