"""Whom and what the projects trust: secrets, providers and rules files, read and read again.

Everything is read before anything is put in force: a file that is no good stops the start, and at
a later reading leaves what is in force as it is.
"""

from __future__ import annotations

import pathlib
import secrets
import stat
from typing import Any, Final

import attrs
from twisted.logger import Logger

from treedbd.config import Project, Settings, TrustedProvider
from treedbd.database.catalog import Catalog
from treedbd.rules.refusal import InvalidRules
from treedbd.rules.ruleset import RuleSet, parse_rules
from treedbd.store.files import make_directory, write_new
from treedbd.web import providers
from treedbd.web.fetch import BadAuthority, fetcher, read_authority
from treedbd.web.providers import InvalidProvider, Provider
from treedbd.web.tokens import BadSecret, read_secret
from treedbd.web.verifier import Verifier

DEVELOPMENT_SECRET: Final = "development.secret"  # noqa: S105 - the name of a file
_SECRET_BYTES: Final = 32


class Untrustworthy(Exception):
    """A file of secrets, keys or rules that cannot be used; one sentence says which and why."""


@attrs.frozen
class _Contents:
    """What the files of one project hold."""

    secrets: tuple[bytes, ...] = attrs.field(repr=False)
    providers: tuple[Provider, ...]
    rules: RuleSet | None


class Trust:
    """The verifiers of all projects, and the rules that files set."""

    _log = Logger()

    def __init__(self, settings: Settings, catalog: Catalog, reactor: Any) -> None:
        """Trust nobody yet; `read` does."""
        self._settings = settings
        self._catalog = catalog
        self._reactor = reactor
        self.verifiers: Final = {
            name: self._make_verifier(project) for name, project in settings.projects.items()
        }
        self.any_project: Final = self._make_verifier(Project()) if settings.development else None

    def read(self) -> None:
        """Read all files and put in force what they say; raise `Untrustworthy` before that."""
        contents = {
            name: self._read_project(project) for name, project in self._settings.projects.items()
        }
        own: tuple[bytes, ...] = ()
        if self._settings.development:
            own = (keep_development_secret(self._settings.data),)
        for name, content in contents.items():
            self.verifiers[name].reload((*content.secrets, *own), content.providers)
            if content.rules is not None:
                self._catalog.rulebook(name).enforce(content.rules)
        if self.any_project is not None:
            self.any_project.reload(own)

    def close(self) -> None:
        """Fetch nothing any more."""
        for verifier in self.verifiers.values():
            verifier.close()

    def _make_verifier(self, project: Project) -> Verifier:
        return Verifier(
            (),
            open_keys=self._open_keys,
            emulator=self._settings.emulator,
            max_token_life_s=project.max_token_life_s,
        )

    def _open_keys(self, provider: Provider) -> providers.ProviderKeys:
        fetch = fetcher(self._reactor, provider.authority)
        return providers.ProviderKeys(provider, fetch, self._reactor)

    def _read_project(self, project: Project) -> _Contents:
        for file in project.secret_files:
            self._warn_if_open(file)
        rules = None if project.rules_file is None else _read_rules(project.rules_file)
        return _Contents(
            read_secrets(project.secret_files), tuple(map(_provider, project.providers)), rules
        )

    def _warn_if_open(self, file: pathlib.Path) -> None:
        try:
            mode = file.stat().st_mode
        except OSError:
            return
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            self._log.warn("Others may read {file}: chmod 600 keeps them out.", file=str(file))


def read_secrets(files: tuple[pathlib.Path, ...]) -> tuple[bytes, ...]:
    """Return the secrets in files; raise `Untrustworthy`."""
    return tuple(map(_read_secret, files))


def keep_development_secret(data: pathlib.Path) -> bytes:
    """Return the secret of development mode, made on its first use; raise `Untrustworthy`."""
    file = data / DEVELOPMENT_SECRET
    try:
        if not file.exists():
            make_directory(data)
            write_new(file, secrets.token_urlsafe(_SECRET_BYTES).encode())
    except OSError as error:
        raise Untrustworthy(f"{file} cannot be made ({error.strerror}).") from None
    return _read_secret(file)


def _read_secret(file: pathlib.Path) -> bytes:
    try:
        return read_secret(file)
    except BadSecret as error:
        raise Untrustworthy(f"{file}: {error}") from None


def _read_rules(file: pathlib.Path) -> RuleSet:
    try:
        return parse_rules(file.read_bytes())
    except OSError as error:
        raise Untrustworthy(f"{file} cannot be read ({error.strerror}).") from None
    except InvalidRules as error:
        raise Untrustworthy(f"{file}:{error}") from None


def _provider(keys: TrustedProvider) -> Provider:
    try:
        authority = None if keys.ca_file is None else read_authority(keys.ca_file)
        return Provider(keys.issuer, keys.audience, keys.jwks_uri or None, authority)
    except (BadAuthority, InvalidProvider) as error:
        raise Untrustworthy(f"The provider {keys.issuer}: {error}") from None
