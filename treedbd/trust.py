"""Whom and what the projects trust: secrets, providers and rules files, read and read again.

Everything is read before anything is put in force: a file that is no good stops the start, and at
a later reading leaves what is in force as it is. A file of secrets that is gone by then is no such
fault: whoever removes it wants its secret trusted no more.
"""

from __future__ import annotations

import pathlib
import secrets
import stat
from collections.abc import Mapping
from typing import Any, Final

import attrs
from twisted.logger import Logger

from treedbd.config import Project, Settings, TrustedProvider
from treedbd.database.catalog import Catalog
from treedbd.rules.limits import RulesLimits
from treedbd.rules.refusal import InvalidRules
from treedbd.rules.ruleset import RuleSet, parse_rules
from treedbd.store.files import make_directory, write_new
from treedbd.web.identity import providers
from treedbd.web.identity.fetch import BadAuthority, fetcher, read_authority
from treedbd.web.identity.providers import InvalidProvider, Provider
from treedbd.web.identity.tokens import BadSecret, read_secret
from treedbd.web.identity.verifier import Verifier

DEVELOPMENT_SECRET: Final = "development.secret"  # noqa: S105 - the name of a file
_SECRET_BYTES: Final = 32


class Untrustworthy(Exception):
    """A file of secrets, keys or rules that cannot be used; one sentence says which and why."""


@attrs.frozen
class _Contents:
    """What the files of one project hold."""

    secrets: dict[pathlib.Path, bytes] = attrs.field(repr=False)
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
        self._has_read = False
        self.verifiers: Final = {
            name: self._make_verifier(project) for name, project in settings.projects.items()
        }
        self.any_project: Final = self._make_verifier(Project()) if settings.development else None

    def read(self, projects: Mapping[str, Project] | None = None) -> None:
        """Read all files and put in force what they say; raise `Untrustworthy` before that.

        `projects` says anew which files and providers each project has. Which projects there are
        stays as it was; one that is not among them any more trusts nobody.
        """
        named = self._settings.projects if projects is None else projects
        contents = {name: self._read_project(named.get(name, Project())) for name in self.verifiers}
        _refuse_shared_secrets(contents)
        _refuse_shared_providers(contents)
        own: tuple[bytes, ...] = ()
        if self._settings.development:
            own = (keep_development_secret(self._settings.data),)
        for name, content in contents.items():
            self.verifiers[name].reload((*content.secrets.values(), *own), content.providers)
            self.verifiers[name].prefetch()
            if content.rules is not None:
                self._catalog.rulebook(name).govern(content.rules)
        if self.any_project is not None:
            self.any_project.reload(own)
        self._has_read = True

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
        found = {file: self._read_secret(file) for file in project.secret_files}
        limits = self._settings.rules.limits()
        rules = None if project.rules_file is None else _read_rules(project.rules_file, limits)
        return _Contents(
            {file: secret for file, secret in found.items() if secret is not None},
            tuple(map(_provider, project.providers)),
            rules,
        )

    def _read_secret(self, file: pathlib.Path) -> bytes | None:
        """Return the secret in a file, None where the file has been removed since the start."""
        if self._has_read and not file.exists():
            self._log.warn(
                "{file} is gone, and its secret is not trusted any more: remove it from "
                "secret_files before the next start.",
                file=str(file),
            )
            return None
        self._warn_if_open(file)
        return _read_secret(file)

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


def _refuse_shared_providers(projects: Mapping[str, _Contents]) -> None:
    """Refuse two projects that would take each other's tokens."""
    owners: dict[tuple[str, str], str] = {}
    for name, content in projects.items():
        for provider in content.providers:
            owner = owners.setdefault((provider.issuer, provider.audience), name)
            if owner != name:
                raise Untrustworthy(
                    f"The projects {owner} and {name} trust the same tokens of {provider.issuer}: "
                    "give each an audience of its own."
                )


def _refuse_shared_secrets(contents: Mapping[str, _Contents]) -> None:
    """Refuse two projects with one secret: each would take the tokens of the other."""
    owners: dict[bytes, str] = {}
    for name, content in contents.items():
        for file, secret in content.secrets.items():
            owner = owners.setdefault(secret, name)
            if owner != name:
                raise Untrustworthy(
                    f"{file}: The projects {owner} and {name} have this secret in common, so that "
                    "each would take the tokens of the other: give every project its own."
                )


def _read_secret(file: pathlib.Path) -> bytes:
    try:
        return read_secret(file)
    except BadSecret as error:
        raise Untrustworthy(f"{file}: {error}") from None


def _read_rules(file: pathlib.Path, limits: RulesLimits) -> RuleSet:
    try:
        return parse_rules(file.read_bytes(), limits)
    except OSError as error:
        raise Untrustworthy(f"{file} cannot be read ({error.strerror}).") from None
    except InvalidRules as error:
        raise Untrustworthy(f"{file}:{error}") from None


def _provider(keys: TrustedProvider) -> Provider:
    try:
        authority = None if keys.ca_file is None else read_authority(keys.ca_file)
        return Provider(keys.issuer, keys.audience, keys.jwks_uri or None, authority)
    except BadAuthority as error:
        which = f"{keys.ca_file}, the ca_file of the provider {keys.issuer}"
        raise Untrustworthy(f"{which}: {error}") from None
    except InvalidProvider as error:
        raise Untrustworthy(f"The provider {keys.issuer}: {error}") from None
