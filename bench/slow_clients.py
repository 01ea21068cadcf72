"""How long a good client waits while slowhttptest keeps as many connections as it can.

    .venv/bin/python bench/slow_clients.py [--connections N] [--seconds N]

slowhttptest, a Debian package, sends heads and bodies and reads responses slowly, all three at the
same time, against one treedb with its default limits. The good client opens a connection for each
request, alternately over TLS and without.
"""

from __future__ import annotations

import argparse
import http.client
import json
import ssl
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import quantiles
from urllib.parse import urlsplit

OWNER = {"Authorization": "Bearer owner"}
ATTACKS = (
    ("-H", "-u", "{url}/a.json"),
    ("-B", "-t", "PUT", "-s", "8192", "-x", "10", "-u", "{url}/a.json"),
    ("-X", "-w", "512", "-y", "1024", "-n", "1", "-z", "4096", "-u", "{url}/large.json"),
)


def main() -> None:
    """Measure, and print the times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=300, help="of each attack")
    parser.add_argument("--seconds", type=int, default=40)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        process, urls = start(folder)
        running: list[subprocess.Popen[bytes]] = []
        try:
            ask(urls[-1], "PUT", "/large.json?print=silent", json.dumps("x" * 8_000_000))
            number = str(options.connections)
            often = ("-c", number, "-r", "100", "-i", "1", "-p", "30", "-l", str(options.seconds))
            for attack in ATTACKS:
                words = [each.format(url=urls[-1]) for each in attack]
                running.append(
                    subprocess.Popen(
                        ["slowhttptest", *often, *words],
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                    )
                )
            times = []
            while any(each.poll() is None for each in running):
                times += [ask(url, "GET", "/a.json") for url in urls]
            cuts = quantiles(times, n=100)
            print(
                f"{len(times)} requests beside {3 * options.connections} slow connections: "
                f"median {cuts[49] * 1e3:.1f} ms, p99 {cuts[98] * 1e3:.1f} ms, "
                f"longest {max(times) * 1e3:.1f} ms"
            )
        finally:
            for each in [*running, process]:
                each.kill()
                each.wait()


def ask(url: str, method: str, path: str, body: str | None = None) -> float:
    """Send a request over a connection of its own; return the seconds that it took."""
    at = urlsplit(url)
    assert at.hostname is not None
    begin = time.perf_counter()
    connection: http.client.HTTPConnection
    if at.scheme == "https":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(at.hostname, at.port, context=context)
    else:
        connection = http.client.HTTPConnection(at.hostname, at.port)
    connection.request(method, path, body, OWNER)
    status = connection.getresponse().status
    connection.close()
    if status not in {200, 204}:
        raise RuntimeError(f"{method} {path} is {status}.")
    return time.perf_counter() - begin


def start(folder: str) -> tuple[subprocess.Popen[bytes], list[str]]:
    """Start a treedb in development mode; return its URLs, over TLS first."""
    words = [sys.executable, "-m", "treedbd", "serve", "--quiet", "--data", f"{folder}/data"]
    words += ["--listen", "ssl:0:interface=127.0.0.1", "--listen", "tcp:0:interface=127.0.0.1"]
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=Path(folder)
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(b"treedb ready "):
            return process, line.decode().split()[2:4]
    raise RuntimeError("treedb did not start.")


if __name__ == "__main__":
    main()
