"""The settings of identity providers: who signs tokens of a project, and whom its users are.

Two providers can give the same `sub` to different persons. So with several of them each has a
prefix for its uids, and the prefixes are such that no uid of one can be that of another.
"""

from __future__ import annotations

import itertools
import pathlib

import attrs

from treedbd.config.values import (
    SettingLocation,
    file,
    https_url,
    issuer_url,
    items,
    key,
    table,
    text,
)
from treedbd.limits import MAX_UID_PREFIX_CHARACTERS
from treedbd.names import SERVICE_PROVIDER


def _provider_name(raw: object, location: SettingLocation) -> str:
    name = text(raw, location)
    if name == SERVICE_PROVIDER:
        raise location.error(f'must not be "{name}", which is that of service tokens')
    return name


def _uid_prefix(raw: object, location: SettingLocation) -> str:
    prefix = text(raw, location)
    if len(prefix) > MAX_UID_PREFIX_CHARACTERS or not prefix.isprintable() or "/" in prefix:
        raise location.error(
            f"must be at most {MAX_UID_PREFIX_CHARACTERS} printable characters without /"
        )
    return prefix


@attrs.frozen
class ProviderSettings:
    """`[[projects.<name>.providers]]`: an issuer of tokens, and who its users are in the rules.

    `name` is `auth.provider`, the host of the issuer if it is empty. `uid_prefix` precedes the
    `sub` of a token in `auth.uid`; only the provider of a project that has no other may omit it.
    """

    issuer: str = key("", issuer_url)
    audience: str = key("", text)
    jwks_uri: str = key("", https_url)
    ca_file: pathlib.Path | None = key(None, file)
    name: str = key("", _provider_name)
    uid_prefix: str | None = key(None, _uid_prefix)


def provider_list(raw: object, location: SettingLocation) -> tuple[ProviderSettings, ...]:
    """Read the providers of a project."""
    found = []
    for each in items(raw, location):
        provider = table(ProviderSettings)(each, location)
        if not provider.issuer or not provider.audience:
            raise location.error("lacks issuer or audience", "set both for every provider")
        found.append(provider)
    if len(found) > 1:
        _check_uid_prefixes(found, location)
    return tuple(found)


def _check_uid_prefixes(providers: list[ProviderSettings], location: SettingLocation) -> None:
    """Raise `ConfigError` unless the prefixes keep the users of all issuers apart."""
    issuers: dict[str, str] = {}
    for provider in providers:
        prefix = provider.uid_prefix
        if prefix is None:
            raise location.error(
                f"holds several, of which {provider.issuer} has no uid_prefix",
                'give each a uid_prefix of its own; that of one may be ""',
            )
        if issuers.setdefault(prefix, provider.issuer) != provider.issuer:
            raise location.error(
                f'gives {issuers[prefix]} and {provider.issuer} the same uid_prefix "{prefix}"',
                "give each issuer its own",
            )
    for longer, shorter in itertools.permutations(filter(None, issuers), 2):
        if longer.startswith(shorter):
            raise location.error(
                f'has the uid_prefix "{longer}", which begins with another one, "{shorter}"',
                'end each with a character that the others do not contain, like "google:"',
            )
