"""Names in certificates: which match a host; a name that cannot be parsed matches none."""

from __future__ import annotations

from functools import cache
from ipaddress import ip_address

import pytest
import trustme
from cryptography import x509
from cryptography.x509.oid import ExtensionOID
from hypothesis import given, settings
from hypothesis import strategies as st
from service_identity import VerificationError
from service_identity.hazmat import DNS_ID, IPAddress_ID, ServiceID

from tests.authority import dns, issue
from tests.examples import examples
from treedbd.web.auth.fetch import TrustStore, require_server_name

HOST = DNS_ID("db.example.com")
ADDRESS = IPAddress_ID("192.0.2.1")


@cache
def authority() -> trustme.CA:
    return trustme.CA()


def certificate(names: x509.ExtensionType | None) -> x509.Certificate:
    pem = issue(authority(), names).cert_chain_pems[0].bytes()
    return x509.load_pem_x509_certificate(pem)


def addresses(*names: str) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName([x509.IPAddress(ip_address(name)) for name in names])


@pytest.mark.parametrize(
    ("names", "ids"),
    [
        (dns("db.example.com"), [HOST]),
        (dns("DB.Example.COM"), [HOST]),
        (dns("*.example.com"), [HOST]),
        (dns("a.example", "*", "*.com", "", "db.example.com"), [HOST]),
        (dns("db.example.com"), [DNS_ID("other.example"), HOST]),
        (dns("db.example.com"), [ADDRESS, HOST]),
        (addresses("192.0.2.1"), [ADDRESS]),
        (addresses("2001:db8::1"), [IPAddress_ID("2001:db8:0::1")]),
    ],
)
def test_a_certificate_for_one_of_the_names_is_accepted(
    names: x509.SubjectAlternativeName, ids: list[ServiceID]
) -> None:
    require_server_name(certificate(names), ids)


@pytest.mark.parametrize(
    "names",
    [
        None,
        dns(),
        dns("example.com"),
        dns("a.db.example.com"),
        dns("*.db.example.com"),
        dns("*.*.com"),
        dns("db.*.com"),
        dns("*.com"),
        dns("*"),
        dns(""),
        dns("192.0.2.1"),
        addresses("192.0.2.2", "::1"),
        x509.SubjectAlternativeName([x509.UniformResourceIdentifier("https://db.example.com")]),
        x509.UnrecognizedExtension(ExtensionOID.SUBJECT_ALTERNATIVE_NAME, b"no names"),
    ],
    ids=str,
)
def test_a_certificate_for_none_of_the_names_is_refused(
    names: x509.ExtensionType | None,
) -> None:
    with pytest.raises(VerificationError):
        require_server_name(certificate(names), [HOST, ADDRESS])


def test_the_common_name_does_not_count() -> None:
    with pytest.raises(VerificationError):
        require_server_name(certificate(None), [DNS_ID("localhost")])


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.text(st.characters(max_codepoint=127), max_size=12), max_size=3))
def test_any_other_names_in_a_certificate_are_refused(names: list[str]) -> None:
    with pytest.raises(VerificationError):
        require_server_name(certificate(dns(*names)), [HOST, ADDRESS])


@pytest.mark.parametrize("host", ["", "a b", "[::1]", "2130706433"])
def test_an_invalid_host_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match="Invalid DNS-ID"):
        TrustStore().creator_for(host)
