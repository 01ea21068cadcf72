"""The credentials of the projects: secrets, providers and rules files, loaded and reloaded.

All files are read before any is used: an invalid file ends the start with an error, and leaves
everything unchanged at a reload. A secret file that is missing at a reload is not an error, because
removing it is how a secret is withdrawn.

Development mode has a secret of its own, in the data directory, from which the secrets of all
projects are derived.
"""

from __future__ import annotations

import pathlib
import time
from codecs import BOM_UTF8
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs
from twisted.logger import Logger

from treedbd.config.hooks import ConfiguredHooks
from treedbd.config.settings import HookSettings, ProjectSettings, ProviderSettings, Settings
from treedbd.config.values import SettingLocation
from treedbd.database.active_rules import log_warnings
from treedbd.database.catalog import Catalog
from treedbd.database.requests import Unavailable
from treedbd.files import (
    READABLE_BY_OTHERS,
    WAS_READABLE_BY_OTHERS,
    close_to_others,
    is_open_to_others,
    open_regular,
)
from treedbd.limits import RulesLimits
from treedbd.loop import Steps, finish
from treedbd.rules.document import InvalidRules, with_hint
from treedbd.rules.ruleset import RuleSet, parse_rules_in_steps
from treedbd.web.auth import providers
from treedbd.web.auth.fetch import BadAuthority, make_fetch, read_authority
from treedbd.web.auth.jwt import (
    DEVELOPMENT_SECRET,
    BadCredentials,
    derive_project_secret,
    ensure_development_secret,
    read_project_secret,
)
from treedbd.web.auth.minting import NoSigningSecret
from treedbd.web.auth.providers import InvalidProvider, Provider
from treedbd.web.auth.verifier import Verifier

STANDBY_TOKENS: Final = "the file of standby_token_file"
STANDBY_UID: Final = "standby"
"""The uid of the tokens that a standby makes."""
STANDBY_TOKEN_S: Final = 86_400.0
MAX_TOKEN_FILE_BYTES: Final = 1_048_576
MAX_UNCONFIGURED: Final = 256
"""How many verifiers are kept of projects that are not configured, in development mode."""


@attrs.frozen
class _Contents:
    """The content of the files of one project."""

    secrets: dict[pathlib.Path, bytes] = attrs.field(repr=False)
    providers: tuple[Provider, ...]
    rules: RuleSet | None
    hook_secrets: dict[str, tuple[str, ...]] = attrs.field(repr=False)


class Credentials:
    """The verifiers of all projects, and the rules of those that have a rules file.

    Attributes:
        verifiers: those of the configured projects.

    """

    _log = Logger()

    def __init__(
        self,
        settings: Settings,
        catalog: Catalog,
        reactor: Any,
        hooks: ConfiguredHooks | None = None,
    ) -> None:
        """Prepare; no token is trusted before `load`, and `hooks` sign nothing."""
        self._settings = settings
        self._catalog = catalog
        self._reactor = reactor
        self._hooks = ConfiguredHooks(settings) if hooks is None else hooks
        self._is_loaded = False
        self._is_closed = False
        self.verifiers: Final = {
            name: self._make_verifier(project) for name, project in settings.projects.items()
        }
        self._unconfigured: OrderedDict[str, Verifier] = OrderedDict()
        self._development_secret: bytes | None = None

    def load(self, projects: Mapping[str, ProjectSettings] | None = None) -> None:
        """Read all files, then use their contents; raise `BadCredentials` if one is invalid.

        `projects` are new settings of the projects. Only their files and providers are used: no
        project is added, and one that is missing there no longer trusts any token.
        """
        finish(self._load(projects))

    async def reload(self, projects: Mapping[str, ProjectSettings] | None = None) -> None:
        """Read and use all files, in slices, since large rules must not delay requests.

        Nothing changes if it raises `BadCredentials`.
        """
        work = self._catalog.rules_work
        async with work.lock():
            await work.run(self._load(projects))

    def _load(self, projects: Mapping[str, ProjectSettings] | None) -> Steps[None]:
        named = self._settings.projects if projects is None else projects
        contents = {}
        for name in self.verifiers:
            project = named.get(name, ProjectSettings())
            contents[name] = yield from self._read_project(name, project)
        if self._is_closed:
            return
        _check_nothing_is_shared(contents, self._settings.location)
        if self._settings.development:
            self._close_development_secret()
            self._development_secret = ensure_development_secret(self._settings.data)
            self._unconfigured.clear()
        for name, content in contents.items():
            trusted = (*content.secrets.values(), *self._own_secrets(name))
            self.verifiers[name].reload(trusted, content.providers)
            self.verifiers[name].prefetch()
            self._hooks.use_secrets(name, content.hook_secrets)
            if content.rules is not None:
                self._catalog.rules(name).manage_by_file(content.rules)
            elif name in named:
                self._release_rules(name)
        self._is_loaded = True

    def verifier(self, project: str) -> Verifier | None:
        """Return the verifier of a project; None for one that is not configured.

        In development mode there is one for every project: those of projects that are not
        configured are made on use, and the latest are kept.
        """
        configured = self.verifiers.get(project)
        if configured is not None or not self._settings.development:
            return configured
        verifier = self._unconfigured.pop(project, None)
        if verifier is None:
            verifier = self._make_verifier(ProjectSettings())
            verifier.reload(self._own_secrets(project))
            if len(self._unconfigured) == MAX_UNCONFIGURED:
                self._unconfigured.popitem(last=False)
        self._unconfigured[project] = verifier
        return verifier

    def token_for_first(self, project: str) -> str:
        """Return the token with which a standby follows a project; raise ValueError.

        It is that of `standby_token_file`, or is made with the first secret of the project.
        """
        file = self._settings.standby_token_file
        if file is not None:
            return _read_token(file, project, is_only=len(self.verifiers) == 1)
        verifier = self.verifiers.get(project)
        try:
            if verifier is not None:
                return verifier.make_own(STANDBY_UID, STANDBY_TOKEN_S, time.time())
        except NoSigningSecret as error:
            raise ValueError(str(error)) from None
        raise ValueError(f"there is no project {project}")

    def close(self) -> None:
        """Trust no token from now on, and fetch no keys; a reload under way has no effect."""
        self._is_closed = True
        for verifier in self.verifiers.values():
            verifier.close()

    def _own_secrets(self, project: str) -> tuple[bytes, ...]:
        """Return the secret of a project in development mode; none otherwise."""
        secret = self._development_secret
        return () if secret is None else (derive_project_secret(secret, project),)

    def _make_verifier(self, project: ProjectSettings) -> Verifier:
        network = self._settings.network
        return Verifier(
            (),
            open_keys=self._open_keys,
            emulator=self._settings.emulator,
            admin_token=None if network is None else network.admin_token,
            max_token_life_s=project.max_token_life_s,
        )

    def _open_keys(self, provider: Provider) -> providers.ProviderKeys:
        fetch = make_fetch(self._reactor, provider.authority)
        return providers.ProviderKeys(provider, fetch, self._reactor)

    def _release_rules(self, name: str) -> None:
        try:
            rules = self._catalog.rules(name)
        except Unavailable:
            return  # the rules are stored, and cannot be read at present
        if rules.is_file_managed:
            rules.stop_managing_by_file()
            self._log.warn(
                "The rules of {project} are no longer managed by a file: those in force stay until "
                "others are put, or until the next start.",
                project=name,
            )

    def _read_project(self, name: str, project: ProjectSettings) -> Steps[_Contents]:
        location = self._settings.location_of(name)
        of_files = location.at("secret_files")
        found = {file: self._read_secret(file, of_files) for file in project.secret_files}
        trusted = tuple(_make_provider(each, location) for each in project.providers)
        rules = None
        if project.rules_file is not None:
            current = self._catalog.rules(name).current
            limits = self._settings.rules
            rules = yield from _read_rules(project.rules_file, limits, location, current)
            if rules is not current:
                log_warnings(self._log, str(project.rules_file), rules)
        present = {file: secret for file, secret in found.items() if secret is not None}
        hook_secrets = {
            each.name: tuple(self._read_hook_secrets(each, location.at("webhooks")))
            for each in project.webhooks
        }
        return _Contents(present, trusted, rules, hook_secrets)

    def _read_hook_secrets(self, hook: HookSettings, location: SettingLocation) -> Iterator[str]:
        """Yield the secrets of a hook, the one that replaces the other first.

        Only the old one may be removed: what is sent must not be unsigned.
        """
        for key in ("secret_file", "old_secret_file"):
            file = getattr(hook, key)
            if file is None:
                continue
            secret = self._read_secret(file, location.at(key), may_be_gone=key != "secret_file")
            try:
                if secret is not None:
                    yield secret.decode()
            except UnicodeDecodeError:
                raise BadCredentials(
                    location.at(key),
                    f"names {file}, which is not text in UTF-8",
                    "use a file with random letters and digits",
                ) from None

    def _read_secret(
        self, file: pathlib.Path, location: SettingLocation, *, may_be_gone: bool = True
    ) -> bytes | None:
        """Return the secret in a file; None if the file has been removed since the start."""
        if may_be_gone and self._is_loaded and not file.exists():
            self._log.warn(
                "{file} has been removed, and its secret is no longer used: remove it from {key} "
                "too before the next start.",
                file=str(file),
                key=location.key.rpartition(".")[2],
            )
            return None
        if is_open_to_others(file):
            self._log.warn(READABLE_BY_OTHERS, file=str(file))
        return read_project_secret(file, location)

    def _close_development_secret(self) -> None:
        file = self._settings.data / DEVELOPMENT_SECRET
        if close_to_others(file):
            self._log.warn(WAS_READABLE_BY_OTHERS, file=str(file))


def _read_token(file: pathlib.Path, project: str, *, is_only: bool) -> str:
    """Return the token of a project in a file of lines `project token`; raise ValueError.

    If there is only one project its name may be missing.
    """
    try:
        with open_regular(file) as opened:  # in the reactor's thread: no other kind may block it
            lines = opened.read(MAX_TOKEN_FILE_BYTES).decode("ascii").splitlines()
    except OSError as error:
        raise ValueError(f"{STANDBY_TOKENS} cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ValueError(f"{STANDBY_TOKENS} holds more than tokens") from None
    for words in (line.split() for line in lines if not line.startswith("#")):
        if words[:1] == [project] and len(words) == 2:
            return words[1]
        if is_only and len(words) == 1:
            return words[0]
    raise ValueError(f"{STANDBY_TOKENS} has no line with {project} and a token")


def _check_nothing_is_shared(contents: Mapping[str, _Contents], location: SettingLocation) -> None:
    """Raise `BadCredentials` if two projects would accept each other's tokens."""
    owners: dict[object, str] = {}
    for name, content in contents.items():
        for file, secret in content.secrets.items():
            if (owner := owners.setdefault(secret, name)) != name:
                raise BadCredentials(
                    location.at("projects"),
                    f"{owner} and {name} share the secret in {file}, so each would accept the "
                    "tokens of the other",
                    "give each project its own secret",
                )
        for provider in content.providers:
            if (owner := owners.setdefault((provider.issuer, provider.audience), name)) != name:
                raise BadCredentials(
                    location.at("projects"),
                    f"{owner} and {name} trust the same tokens of {provider.issuer}",
                    "give each project its own audience",
                )


def _read_rules(
    file: pathlib.Path, limits: RulesLimits, location: SettingLocation, current: RuleSet
) -> Steps[RuleSet]:
    """Return the rules in a file: `current` if it has not changed; raise `BadCredentials`."""
    location = location.at("rules_file")
    try:
        text = file.read_bytes().removeprefix(BOM_UTF8)
        if text == current.text.encode():
            return current
        return (yield from parse_rules_in_steps(text, limits))
    except OSError as error:
        raise BadCredentials(
            location,
            f"names {file}, which cannot be read ({error.strerror})",
            "let the user that runs treedb read it, or name another file",
        ) from None
    except InvalidRules as error:
        # `<file>:<line>:<column>: ` is what editors and compilers use.
        problem = f"names a file that is not valid, {file}:{with_hint(error).removesuffix('.')}"
        raise BadCredentials(location, problem, "correct it there") from None


def _make_provider(settings: ProviderSettings, location: SettingLocation) -> Provider:
    location = location.at("providers")
    try:
        authority = None if settings.ca_file is None else read_authority(settings.ca_file)
        return Provider(
            issuer=settings.issuer,
            audience=settings.audience,
            jwks_uri=settings.jwks_uri or None,
            authority=authority,
            name=settings.name,
            uid_prefix=settings.uid_prefix or "",
        )
    except BadAuthority as error:
        raise BadCredentials(
            location,
            f"names {settings.ca_file} as the ca_file of {settings.issuer}, which {error.problem}",
            "use a file with certificates in PEM that the user that runs treedb can read",
        ) from None
    except InvalidProvider as error:
        raise BadCredentials(
            location,
            f"names {settings.issuer}, of which the {error.field} {error.problem}",
            "correct it or remove it",
        ) from None
