"""Whom and what the projects trust: secrets, providers and rules files, read and read again.

Everything is read before anything is put in force: a file that is no good stops the start, and at
a later reading leaves what is in force as it is. A file of secrets that is gone by then is no such
fault: whoever removes it wants its secret trusted no more.
"""

from __future__ import annotations

import hashlib
import hmac
import pathlib
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

import attrs
from twisted.logger import Logger

from treedbd.config import Project, Settings, TrustedProvider
from treedbd.database.catalog import Catalog
from treedbd.keys import Place
from treedbd.rules.limits import RulesLimits
from treedbd.rules.refusal import InvalidRules
from treedbd.rules.ruleset import RuleSet, parse_rules
from treedbd.store.files import (
    close_to_others,
    is_open_to_others,
    make_directory,
    write_new,
)
from treedbd.web.identity import providers
from treedbd.web.identity.fetch import BadAuthority, fetcher, read_authority
from treedbd.web.identity.providers import InvalidProvider, Provider
from treedbd.web.identity.tokens import MIN_SECRET_BYTES, BadSecret, read_secret
from treedbd.web.identity.verifier import Verifier

DEVELOPMENT_SECRET: Final = "development.secret"  # noqa: S105 - the name of a file
OTHERS_MAY_READ: Final = "Others may read {file}: chmod 600 keeps them out."
OTHERS_COULD_READ: Final = (
    "Others could read {file}, and cannot any more; if one of them may have, remove it, and "
    "another is made at the next start."
)
MOST_GUESTS: Final = 256
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
        self._guests: OrderedDict[str, Verifier] = OrderedDict()
        self._development_secret: bytes | None = None

    def read(self, projects: Mapping[str, Project] | None = None) -> None:
        """Read all files and put in force what they say; raise `Untrustworthy` before that.

        `projects` says anew which files and providers each project has. Which projects there are
        stays as it was; one that is not among them any more trusts nobody.
        """
        named = self._settings.projects if projects is None else projects
        contents = {
            name: self._read_project(named.get(name, Project()), self._settings.place_of(name))
            for name in self.verifiers
        }
        _refuse_shared_secrets(contents, self._settings.place)
        _refuse_shared_providers(contents, self._settings.place)
        if self._settings.development:
            self._close_development_secret()
            self._development_secret = keep_development_secret(self._settings.data)
            self._guests.clear()
        for name, content in contents.items():
            trusted = (*content.secrets.values(), *self._own_secrets(name))
            self.verifiers[name].reload(trusted, content.providers)
            self.verifiers[name].prefetch()
            if content.rules is not None:
                self._catalog.rulebook(name).govern(content.rules)
            elif name in named:
                self._release_rules(name)
        self._has_read = True

    def verifier(self, project: str) -> Verifier | None:
        """Return the verifier of a project; in development mode any has one, else None.

        Those of projects that are not configured are made on use, and the latest are kept.
        """
        named = self.verifiers.get(project)
        if named is not None or not self._settings.development:
            return named
        guest = self._guests.pop(project, None)
        if guest is None:
            guest = self._make_verifier(Project())
            guest.reload(self._own_secrets(project))
            if len(self._guests) == MOST_GUESTS:
                self._guests.popitem(last=False)
        self._guests[project] = guest
        return guest

    def close(self) -> None:
        """Fetch nothing any more."""
        for verifier in self.verifiers.values():
            verifier.close()

    def _own_secrets(self, project: str) -> tuple[bytes, ...]:
        """Return the secret that development mode gives a project, none otherwise."""
        secret = self._development_secret
        return () if secret is None else (development_secret_of(secret, project),)

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

    def _release_rules(self, name: str) -> None:
        rulebook = self._catalog.rulebook(name)
        if rulebook.is_governed:
            rulebook.release()
            self._log.warn(
                "No file governs the rules of {project} any more: those in force stay until "
                "others are put, or until the next start.",
                project=name,
            )

    def _read_project(self, project: Project, place: Place) -> _Contents:
        found = {file: self._read_secret(file, place) for file in project.secret_files}
        limits = self._settings.rules.limits()
        file = project.rules_file
        return _Contents(
            {file: secret for file, secret in found.items() if secret is not None},
            tuple(_provider(each, place) for each in project.providers),
            None if file is None else _read_rules(file, limits, place),
        )

    def _read_secret(self, file: pathlib.Path, place: Place) -> bytes | None:
        """Return the secret in a file, None where the file has been removed since the start."""
        if self._has_read and not file.exists():
            self._log.warn(
                "{file} is gone, and its secret is not trusted any more: remove it from "
                "secret_files before the next start.",
                file=str(file),
            )
            return None
        self._warn_if_open(file)
        return read_project_secret(file, place)

    def _warn_if_open(self, file: pathlib.Path) -> None:
        if is_open_to_others(file):
            self._log.warn(OTHERS_MAY_READ, file=str(file))

    def _close_development_secret(self) -> None:
        file = self._settings.data / DEVELOPMENT_SECRET
        if close_to_others(file):
            self._log.warn(OTHERS_COULD_READ, file=str(file))


def read_project_secret(file: pathlib.Path, place: Place) -> bytes:
    """Return a secret of the project whose keys stand at `place`; raise `Untrustworthy`."""
    try:
        return read_secret(file)
    except BadSecret as error:
        raise _refuse(
            place.at("secret_files"),
            f"names {file} ({_as_part(error)})",
            f"let it hold {MIN_SECRET_BYTES} random bytes or more, and let the user that runs "
            "treedb read it",
        ) from None


def keep_development_secret(data: pathlib.Path) -> bytes:
    """Return the secret of development mode, made on its first use; raise `Untrustworthy`."""
    file = data / DEVELOPMENT_SECRET
    try:
        if not file.exists():
            make_directory(data)
            write_new(file, secrets.token_urlsafe(_SECRET_BYTES).encode())
    except OSError as error:
        raise Untrustworthy(
            f"{file} cannot be made ({error.strerror}): let the user that runs treedb write there."
        ) from None
    try:
        return read_secret(file)
    except BadSecret as error:
        raise Untrustworthy(
            f"{file} is no good ({_as_part(error)}): remove it, and another is made."
        ) from None


def development_secret_of(secret: bytes, project: str) -> bytes:
    """Return what signs one project's tokens in development mode: worth nothing at another."""
    return hmac.new(secret, project.encode(), hashlib.sha256).hexdigest().encode()


def _refuse_shared_providers(projects: Mapping[str, _Contents], place: Place) -> None:
    """Refuse two projects that would take each other's tokens."""
    owners: dict[tuple[str, str], str] = {}
    for name, content in projects.items():
        for provider in content.providers:
            owner = owners.setdefault((provider.issuer, provider.audience), name)
            if owner != name:
                raise _refuse(
                    place.at("projects"),
                    f"{owner} and {name} trust the same tokens of {provider.issuer}",
                    "give each an audience of its own",
                )


def _refuse_shared_secrets(contents: Mapping[str, _Contents], place: Place) -> None:
    """Refuse two projects with one secret: each would take the tokens of the other."""
    owners: dict[bytes, str] = {}
    for name, content in contents.items():
        for file, secret in content.secrets.items():
            owner = owners.setdefault(secret, name)
            if owner != name:
                raise _refuse(
                    place.at("projects"),
                    f"{owner} and {name} have the secret in {file} in common, so that each would "
                    "take the tokens of the other",
                    "give every project its own",
                )


def _read_rules(file: pathlib.Path, limits: RulesLimits, place: Place) -> RuleSet:
    place = place.at("rules_file")
    try:
        return parse_rules(file.read_bytes(), limits)
    except OSError as error:
        raise _refuse(
            place,
            f"names {file}, which cannot be read ({error.strerror})",
            "let the user that runs treedb read it, or name another file",
        ) from None
    except InvalidRules as error:
        fault = str(error).removesuffix(".")
        raise _refuse(place, f"has a fault, {file}:{fault}", "correct it there") from None


def _refuse(place: Place, problem: str, *remedy: str) -> Untrustworthy:
    return Untrustworthy(str(place.refuse(problem, *remedy)))


def _as_part(sentence: Exception) -> str:
    """Return the sentence of an error so that it can stand within another."""
    text = str(sentence).removesuffix(".")
    return text[:1].lower() + text[1:]


def _provider(keys: TrustedProvider, place: Place) -> Provider:
    providers = place.at("providers")
    try:
        authority = None if keys.ca_file is None else read_authority(keys.ca_file)
        return Provider(keys.issuer, keys.audience, keys.jwks_uri or None, authority)
    except BadAuthority as error:
        raise _refuse(
            providers,
            f"names {keys.ca_file}, the ca_file of the provider {keys.issuer} ({_as_part(error)})",
            "let it hold certificates in PEM that the user that runs treedb can read",
        ) from None
    except InvalidProvider as error:
        raise _refuse(providers, f"names {keys.issuer} ({_as_part(error)})") from None
