"""What a service is made with, as its settings say."""

from __future__ import annotations

import pathlib

import attrs
import pytest
from twisted.internet import reactor

from treedbd.cluster.election import LeaseElection
from treedbd.config.endpoints import parse_endpoint
from treedbd.config.settings import HSTS_S, HttpSettings, Settings, load_settings
from treedbd.database.election import FileElection, SoleElection
from treedbd.service import make_cluster, make_election, secure_headers

PUBLIC, NEAR = "ssl:443:privateKey=k:certKey=c", "tcp:9000:interface=127.0.0.1"
HERE = pathlib.Path("/etc/treedb")


def listening_on(*endpoints: str, http: HttpSettings | None = None) -> Settings:
    """Return the settings of a daemon with these endpoints."""
    listen = tuple(parse_endpoint(each, HERE) for each in endpoints)
    return Settings(listen, http=http or HttpSettings())


def hsts_of(settings: Settings) -> bytes | None:
    """Return the value of Strict-Transport-Security, None if there is none."""
    headers = dict(secure_headers(settings))
    assert set(headers) <= {b"Strict-Transport-Security"}
    return headers.get(b"Strict-Transport-Security")


def test_a_daemon_that_other_machines_reach_binds_browsers_to_tls_for_a_year() -> None:
    assert hsts_of(listening_on(PUBLIC)) == b"max-age=%d" % HSTS_S
    assert hsts_of(listening_on(NEAR, PUBLIC)) == b"max-age=%d" % HSTS_S


@pytest.mark.parametrize("listen", [(), (NEAR,), ("ssl:443:interface=localhost",)])
def test_a_daemon_of_this_machine_alone_binds_no_browser_unless_it_is_set(
    listen: tuple[str, ...],
) -> None:
    assert hsts_of(listening_on(*listen)) is None
    assert hsts_of(listening_on(*listen, http=HttpSettings(hsts_s=5))) == b"max-age=5"


def test_development_mode_and_the_emulator_bind_no_browser(tmp_path: pathlib.Path) -> None:
    assert hsts_of(load_settings(None, {}, tmp_path)) is None
    assert hsts_of(attrs.evolve(listening_on(PUBLIC), development=True)) is None
    assert hsts_of(attrs.evolve(listening_on(PUBLIC), emulator=True)) is None


def test_hsts_is_switched_off_by_0_and_extended_to_subdomains_by_a_key() -> None:
    assert hsts_of(listening_on(PUBLIC, http=HttpSettings(hsts_s=0))) is None
    wide = HttpSettings(hsts_s=60, hsts_subdomains=True)
    assert hsts_of(listening_on(PUBLIC, http=wide)) == b"max-age=60; includeSubDomains"


@pytest.mark.parametrize(
    ("engine", "kind"),
    [
        ("memory", SoleElection),
        ("sqlite", FileElection),
        ("postgresql://treedb@127.0.0.1:1/treedb", LeaseElection),
    ],
)
def test_the_reader_is_elected_where_all_processes_see_it(
    engine: str, kind: type[object], tmp_path: pathlib.Path
) -> None:
    settings = attrs.evolve(load_settings(None, {}, tmp_path), engine=engine)
    cluster = make_cluster(settings, reactor)
    election = make_election("archive", settings, reactor, cluster)
    assert type(election) is kind
    assert not election.is_elected
