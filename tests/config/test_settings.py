"""The configuration: what is read, what overrides what, and what every error says."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
from typing import Any

import attrs
import pytest

from treedbd.config.settings import (
    ArchiveSettings,
    AuditSettings,
    FunctionsSettings,
    HookSettings,
    HttpSettings,
    LogSettings,
    ProjectSettings,
    ProviderSettings,
    RealtimeSettings,
    Settings,
    TracingSettings,
    WebhookSettings,
    load_settings,
)
from treedbd.config.values import ConfigError
from treedbd.files import read_installation
from treedbd.limits import Limits, RateLimits, ReaderLimits, RulesLimits, StreamLimits
from treedbd.names import parse_trusted_proxies

# The settings are below all that reads them, and a command that only needs them must start quickly.
NOT_LOADED = (
    *("treedbd.web", "treedbd.rules", "treedbd.database", "treedbd.store"),
    *("twisted", "cryptography", "apsw", "lark", "re2", "_re2"),
)
EXAMPLE = pathlib.Path(__file__).parent.parent.parent / "conf" / "treedb.toml"


def load(folder: pathlib.Path, text: str, **flags: object) -> Settings:
    (folder / "treedb.toml").write_text(text)
    return load_settings(pathlib.Path("treedb.toml"), flags, folder)


def _two_providers(first: str, second: str) -> str:
    """Return the configuration of two providers with further keys."""
    tables = (
        f'[[projects.shop.providers]]\nissuer = "https://{host}.example"\naudience = "shop"\n{keys}'
        for host, keys in (("a", first), ("b", second))
    )
    return "\n".join(tables)


def load_error(folder: pathlib.Path, text: str, **flags: object) -> str:
    """Return the sentence with which loading fails."""
    with pytest.raises(ConfigError) as caught:
        load(folder, text, **flags)
    return str(caught.value)


def test_importing_the_settings_loads_nothing_of_the_daemon() -> None:
    program = "import sys, treedbd.config.settings; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = done.stdout.split()
    assert "treedbd.config.settings" in loaded
    prefixes = tuple(f"{name}." for name in NOT_LOADED)
    assert [name for name in loaded if f"{name}.".startswith(prefixes)] == []


def test_an_empty_file_means_every_default(tmp_path: pathlib.Path) -> None:
    assert load(tmp_path, "") == Settings()


def test_every_key_of_the_file_is_a_setting(tmp_path: pathlib.Path) -> None:
    settings = load(
        tmp_path,
        """
        listen = ["ssl:443:privateKey=key.pem:certKey=cert.pem", "tcp:80:interface=127.0.0.1"]
        domains = ["DB.example.com"]
        trusted_proxies = ["10.0.0.0/8", "unix"]
        default_project = "shop"
        data = "store"
        engine = "memory"
        [limits]
        write_body_bytes = 268_435_456
        head_s = 3
        [http]
        etag_headers = ["Mine"]
        cors_origins = ["https://app.example.com"]
        access_log = true
        [log]
        format = "json"
        sample = 0.5
        slow_request_s = 1
        slow_rule_ms = 20
        [projects.shop]
        databases = ["default", "eu"]
        dialect = "firebase"
        require_index = true
        [projects.all]
        databases = "*"
        """,
    )
    assert [endpoint.port for endpoint in settings.listen] == [443, 80]
    assert settings.domains == ("db.example.com",)
    assert settings.trusted_proxies == parse_trusted_proxies(["10.0.0.0/8", "unix"])
    assert settings.default_project == "shop"
    assert settings.data == tmp_path / "store"
    assert settings.engine == "memory"
    assert settings.limits == Limits(write_body_bytes=268_435_456, head_s=3.0)
    assert settings.http == HttpSettings(("Mine",), ("https://app.example.com",), True)
    assert settings.log == LogSettings("json", 0.5, 1.0, 20.0)
    assert settings.projects == {
        "shop": ProjectSettings(frozenset({"default", "eu"}), "firebase", True),
        "all": ProjectSettings(None),
    }
    assert not settings.development


def test_the_credentials_of_a_project_are_settings(tmp_path: pathlib.Path) -> None:
    settings = load(
        tmp_path,
        """
        [projects.shop]
        secret_files = ["/etc/a.secret", "b.secret"]
        rules_file = "shop.rules.json"
        max_token_life_s = 3600
        [[projects.shop.providers]]
        issuer = "https://accounts.example.com"
        audience = "shop"
        jwks_uri = "https://accounts.example.com/keys"
        ca_file = "ca.pem"
        name = "accounts"
        uid_prefix = ""
        [[projects.shop.providers]]
        issuer = "https://other.example.com"
        audience = "shop"
        uid_prefix = "other:"
        [[projects.shop.providers]]
        issuer = "https://other.example.com"
        audience = "phone"
        uid_prefix = "other:"
        """,
    )
    shop = settings.projects["shop"]
    assert shop.secret_files == (pathlib.Path("/etc/a.secret"), tmp_path / "b.secret")
    assert shop.rules_file == tmp_path / "shop.rules.json"
    assert shop.max_token_life_s == 3600.0
    assert shop.providers == (
        ProviderSettings(
            "https://accounts.example.com",
            "shop",
            "https://accounts.example.com/keys",
            tmp_path / "ca.pem",
            "accounts",
            "",
        ),
        ProviderSettings("https://other.example.com", "shop", uid_prefix="other:"),
        ProviderSettings("https://other.example.com", "phone", uid_prefix="other:"),
    )


def test_paths_in_the_file_start_from_its_folder_and_in_flags_from_the_working_directory(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "treedb.toml").write_text('listen = ["ssl:1:privateKey=a.pem"]\ndata="d"')
    file = pathlib.Path("etc/treedb.toml")
    settings = load_settings(file, {}, tmp_path)
    assert settings.data == tmp_path / "etc" / "d"
    certificate = settings.listen[0].certificate
    assert certificate is not None
    assert certificate.key == certificate.certificate == tmp_path / "etc" / "a.pem"
    flags = {"data": "e", "listen": ["ssl:1:privateKey=b.pem"]}
    settings = load_settings(file, flags, tmp_path)
    assert settings.data == tmp_path / "e"
    certificate = settings.listen[0].certificate
    assert certificate is not None
    assert certificate.key == tmp_path / "b.pem"


@pytest.mark.parametrize(
    ("endpoint", "remedy"),
    [
        ("tcp:1", "add interface=127.0.0.1"),
        ("haproxy:tcp:1:interface=127.0.0.1", "leave out haproxy:"),
        ("haproxy:systemd:web", "leave out haproxy:"),
    ],
)
def test_the_emulator_serves_neither_other_machines_nor_proxies_of_theirs(
    tmp_path: pathlib.Path, endpoint: str, remedy: str
) -> None:
    text = f'listen = ["{endpoint}"]\nemulator = true'
    problem = f"opens {endpoint} to other machines, which emulator = true does not allow: {remedy}"
    with pytest.raises(ConfigError, match=re.escape(problem)):
        load(tmp_path, text)
    with pytest.raises(ConfigError, match="development mode does not allow"):
        load_settings(None, {"listen": [endpoint]}, tmp_path)
    near = load(tmp_path, 'listen = ["systemd:web"]\nemulator = true')  # checked when it is open
    assert near.listen[0].is_passed


def test_a_flag_overrides_the_file(tmp_path: pathlib.Path) -> None:
    text = 'listen = ["tcp:1", "tcp:2"]\nengine = "sqlite"'
    settings = load(tmp_path, text, listen=["tcp:3"], engine="memory")
    assert [endpoint.port for endpoint in settings.listen] == [3]
    assert settings.engine == "memory"


def test_without_a_file_there_is_development_mode_on_loopback(tmp_path: pathlib.Path) -> None:
    settings = load_settings(None, {}, tmp_path)
    assert settings.development
    assert settings.emulator
    assert [(each.kind, each.interface, each.port) for each in settings.listen] == [
        ("ssl", "127.0.0.1", 8443),
        ("tcp", "127.0.0.1", 9000),
    ]
    assert settings.domains == ("localhost",)
    assert settings.default_project == "demo"
    assert settings.data == tmp_path / "treedb-data"
    assert settings.projects == {"demo": ProjectSettings(None)}


def test_flags_override_development_mode_too(tmp_path: pathlib.Path) -> None:
    flags = {"listen": ["ssl:0:interface=127.0.0.1"], "data": "x", "engine": "memory"}
    settings = load_settings(None, flags, tmp_path)
    assert settings.development
    assert settings.listen[0].certificate is None
    assert (settings.data, settings.engine) == (tmp_path / "x", "memory")


ORIGINS = ["https://app.example.com", "http://box.example:3000"]


def test_origins_of_the_command_line_are_added(tmp_path: pathlib.Path) -> None:
    settings = load_settings(None, {"origin": ORIGINS}, tmp_path)
    assert settings.http.cors_origins == ("*", *ORIGINS)
    settings = load(tmp_path, '[http]\ncors_origins = ["https://a.example"]', origin=ORIGINS)
    assert settings.http.cors_origins == ("https://a.example", *ORIGINS)


@pytest.mark.parametrize(
    "origin",
    [
        "app.example.com",
        "https://a.example/",
        "https://a.example/x",
        "https://u@a.example",
        "*",
        "",
    ],
)
def test_what_is_no_origin_is_refused_in_one_sentence(tmp_path: pathlib.Path, origin: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(None, {"origin": [ORIGINS[0], origin]}, tmp_path)
    assert str(caught.value) == (
        f'the command line: --origin is "{origin}", which is not the origin of a page, as '
        "https://app.example.com is: give its scheme, host and port, and no path."
    )


@pytest.mark.parametrize(
    ("text", "key", "remedy"),
    [
        ("lissten = []", "lissten", "did you mean listen"),
        ("zzz = 1", "zzz", "the keys are listen, domains"),
        ("workers = 0", "workers", "must be an integer from 1 to 64: correct it"),
        ('workers = "many"', "workers", 'must be an integer from 1 to 64, or "auto"'),
        ('workers = 2\nengine = "memory"', "workers", 'set workers = 1, or engine = "sqlite"'),
        ('"a\\nb" = 1', r"a\nb", "the keys are"),
        ('[projects."a\\u001b[2J\\nb"]', "projects", r'"a\x1b[2J\nb", which is not a name'),
        ('listen = ["carrier-pigeon:1"]', "listen", "is of an unknown kind"),
        ('listen = ["ssl:1:k:c:sslmethod=x"]', "listen", "leave it out"),
        ("[limits]\nwrite_body_byte = 1", "limits.write_body_byte", "write_body_bytes"),
        ("[projects.shop]\nsecret = 1", "projects.shop.secret", "is not a key"),
        ("listen = 8080", "listen", "must be a list"),
        ("listen = [8080]", "listen", "must be a string"),
        ('listen = ["8080"]', "listen", "tcp:8080"),
        ('listen = ["tcp:http"]', "listen", "from 0 to 65535"),
        ('listen = ["ssl:443"]', "listen", "add privateKey= and certKey="),
        ('listen = ["ssl:443:key=k.pem"]', "listen", "privateKey"),
        ('domains = ["a b"]', "domains", "host names"),
        ("domains = [1]", "domains", "host names"),
        ('trusted_proxies = "unix"', "trusted_proxies", "must be a list"),
        ("trusted_proxies = [7]", "trusted_proxies", "must be a string"),
        (
            'trusted_proxies = ["lb.example.com"]',
            "trusted_proxies",
            "neither an address, a network",
        ),
        ('trusted_proxies = ["10.1.2.3/8"]', "trusted_proxies", "the network is 10.0.0.0/8"),
        ('emulator = true\ntrusted_proxies = ["::1"]', "trusted_proxies", "set emulator = false"),
        ('default_project = "shop"', "default_project", "add [projects.shop]"),
        ('default_project = "Shop"', "default_project", "use a-z, 0-9 and"),
        ("data = 1", "data", "must be a string"),
        ('data = ""', "data", "path of a directory"),
        ('engine = "oracle"', "engine", "sqlite, memory"),
        ('engine = "postgresql://a:b@h/d"', "engine", "PGPASSFILE"),
        ('engine = "postgresql://h/d"\nworkers = 2', "workers", "one process"),
        ('reads = "local"', "reads", "over PostgreSQL"),
        ("engine = 1", "engine", "must be a string"),
        ('emulator = "no"', "emulator", "true or false"),
        ('emulator = true\nlisten = ["tcp:80"]', "listen", "interface=127.0.0.1"),
        ('emulator = true\nops_listen = ["tcp:80"]', "ops_listen", "interface=127.0.0.1"),
        ('ops_listen = ["ssl:443"]', "ops_listen", "add privateKey="),
        ('ops_listen = ["tcp"]', "ops_listen", "bad endpoint"),
        ('ops_listen = "tcp:80"', "ops_listen", "list"),
        ('emulator = true\nconsole_listen = ["tcp:80"]', "console_listen", "interface=127.0.0.1"),
        ('console_listen = ["ssl:443"]', "console_listen", "add privateKey="),
        ('console_listen = ["tcp"]', "console_listen", "bad endpoint"),
        ('console_listen = "tcp:80"', "console_listen", "list"),
        ("limits = 1", "limits", "must be a table"),
        ("[limits]\nwrite_body_bytes = 268_435_457", "limits.write_body_bytes", "268435456"),
        ("[limits]\nwrite_body_bytes = 0", "limits.write_body_bytes", "from 1 to"),
        ("[limits]\nwrite_body_bytes = true", "limits.write_body_bytes", "integer"),
        ("[limits]\nwrite_body_bytes = 1.5", "limits.write_body_bytes", "integer"),
        ("[limits]\nidle_s = 0", "limits.idle_s", "above 0"),
        ("[limits]\nidle_s = nan", "limits.idle_s", "above 0"),
        ("[limits]\nidle_s = true", "limits.idle_s", "seconds"),
        ('[http]\netag_headers = ["a:b"]', "http.etag_headers", "Vendor"),
        ('[http]\ncors_origins = ["app.example.com"]', "http.cors_origins", "https://"),
        ("[http]\nhsts_s = -1", "http.hsts_s", "an integer from 0 to 315360000"),
        ("[http]\nhsts_s = 1.5", "http.hsts_s", "an integer from 0 to 315360000"),
        ("[http]\nhsts_subdomains = 1", "http.hsts_subdomains", "true or false"),
        ('[http]\naccess_log = "on"', "http.access_log", 'true or false, or "combined"'),
        (
            '[http]\naccess_log = "combined"\n[log]\nformat = "json"',
            "http.access_log",
            "set access_log = true",
        ),
        ('[log]\nformat = "xml"', "log.format", "one of text, json"),
        ("[log]\nsample = 1.1", "log.sample", "from 0 to 1"),
        ("[log]\nsample = true", "log.sample", "must be a number"),
        ("[log]\nslow_request_s = -1", "log.slow_request_s", "from 0 to 86400"),
        ("[log]\nslow_rule_ms = nan", "log.slow_rule_ms", "from 0 to 3600000"),
        ("projects = 1", "projects", "[projects.<name>]"),
        ("[projects.Shop]", "projects", "use a-z, 0-9 and"),
        ("[projects.a--b]", "projects", "use a-z, 0-9 and"),
        ("[projects.a-]", "projects", "use a-z, 0-9 and"),
        (f"[projects.{'a' * 64}]", "projects", "use a-z, 0-9 and"),
        ("[projects]\nshop = 1", "projects.shop", "must be a table"),
        ("[projects.shop]\ndatabases = 1", "projects.shop.databases", "must be a list"),
        (
            '[projects.shop]\ndatabases = ["_"]',
            "projects.shop.databases",
            "use a-z, 0-9 and",
        ),
        (
            f'[projects.{"a" * 40}]\ndatabases = ["{"b" * 40}"]',
            f"projects.{'a' * 40}.databases",
            "at most 63",
        ),
        ("[projects.shop]\nsecret_files = 1", "projects.shop.secret_files", "must be a list"),
        ("[projects.shop]\nsecret_files = [1]", "projects.shop.secret_files", "must be a string"),
        ("[projects.shop]\nrules_file = []", "projects.shop.rules_file", "must be a string"),
        ("[projects.shop]\nproviders = [1]", "projects.shop.providers", "must be a table"),
        (
            '[[projects.shop.providers]]\nissuer = "https://a.example.com"',
            "projects.shop.providers",
            "set both",
        ),
        *(
            (
                f'[[projects.shop.providers]]\nissuer = "{issuer}"\naudience = "shop"',
                "projects.shop.providers.issuer",
                "https URL without a query and a fragment: correct it",
            )
            for issuer in (
                *("http://a.example.com", "a.example.com", "https://", "https://a.example?b"),
                *("https://a.example#b", "https://me:hush@a.example", "https://a b", ""),
            )
        ),
        (
            '[[projects.shop.providers]]\nissuer = "https://a.example"\naudience = ""',
            "projects.shop.providers",
            "set both",
        ),
        *(
            (
                '[[projects.shop.providers]]\nissuer = "https://a.example"\naudience = "shop"\n'
                f'jwks_uri = "{uri}"',
                "projects.shop.providers.jwks_uri",
                "must be an https URL: correct it",
            )
            for uri in ("http://a.example/keys", "/keys", "")
        ),
        *(
            (
                _two_providers(first, second),
                "projects.shop.providers",
                f"{problem}: give each",
            )
            for first, second, problem in (
                ("", 'uid_prefix = "b:"', "https://a.example has no uid_prefix"),
                ('uid_prefix = ""', "", "https://b.example has no uid_prefix"),
                ('uid_prefix = ""', 'uid_prefix = ""', 'the same uid_prefix ""'),
                ('uid_prefix = "x:"', 'uid_prefix = "x:"', 'the same uid_prefix "x:"'),
            )
        ),
        (
            _two_providers('uid_prefix = "a"', 'uid_prefix = "ab"'),
            "projects.shop.providers",
            'the uid_prefix "ab", which begins with another one, "a": end each',
        ),
        *(
            (
                _two_providers('uid_prefix = ""', f'uid_prefix = "{prefix}"'),
                "projects.shop.providers.uid_prefix",
                "at most 64 printable characters without /",
            )
            for prefix in ("a/", "\\n", "a" * 65)
        ),
        (
            _two_providers('name = "custom"', ""),
            "projects.shop.providers.name",
            'must not be "custom"',
        ),
        ("[projects.shop]\nmax_token_life_s = 0", "projects.shop.max_token_life_s", "above 0"),
        (
            "[projects.shop]\nmax_token_life_s = 1e9",
            "projects.shop.max_token_life_s",
            "at most 315360000:",
        ),
        ('[projects.shop]\ndialect = "x"', "projects.shop.dialect", "auto, standard, firebase"),
    ],
)
def test_an_error_names_file_key_and_remedy_in_one_sentence(
    tmp_path: pathlib.Path, text: str, key: str, remedy: str
) -> None:
    sentence = load_error(tmp_path, text)
    assert sentence.startswith(f"treedb.toml: {key} ")
    assert remedy in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence
    assert "hush" not in sentence


def test_the_error_of_a_bad_flag_names_the_command_line(tmp_path: pathlib.Path) -> None:
    sentence = load_error(tmp_path, "", engine="oracle")
    assert sentence.startswith("the command line: engine ")


def test_in_emulator_mode_a_flag_may_only_listen_on_loopback(
    tmp_path: pathlib.Path,
) -> None:
    sentence = load_error(tmp_path, "emulator = true", listen=["tcp:0"])
    assert sentence.startswith("the command line: ")
    with pytest.raises(ConfigError, match="the command line: listen opens"):
        load_settings(None, {"listen": ["tcp:0:interface=192.0.2.1"]}, tmp_path)


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"listen = [", "not TOML"), (b"\xff", "not UTF-8"), (None, "No such file")],
)
def test_the_error_of_a_file_that_cannot_be_read_names_it(
    tmp_path: pathlib.Path, content: bytes | None, problem: str
) -> None:
    if content is not None:
        (tmp_path / "x.toml").write_bytes(content)
    with pytest.raises(ConfigError, match=rf"^x\.toml: .*{problem}.*: .*\.$"):
        load_settings(pathlib.Path("x.toml"), {}, tmp_path)


def test_the_example_file_shows_every_key_at_its_default(tmp_path: pathlib.Path) -> None:
    text = EXAMPLE.read_text()
    assert load(tmp_path, text) == Settings()
    shown = re.sub(r"(?m)^#(?=\S)", "", text)
    settings = load(tmp_path, shown)
    assert settings == attrs.evolve(Settings(), projects={"shop": ProjectSettings()})
    keys = set(re.findall(r"(?m)^# ?([a-z_]+) = ", text))
    fields = {
        field.name
        for kind in (
            Settings,
            Limits,
            StreamLimits,
            RulesLimits,
            RateLimits,
            ReaderLimits,
            WebhookSettings,
            HookSettings,
            FunctionsSettings,
            ArchiveSettings,
            AuditSettings,
            HttpSettings,
            LogSettings,
            RealtimeSettings,
            TracingSettings,
            ProjectSettings,
            ProviderSettings,
        )
        for field in attrs.fields(kind)
    }
    sections = {"limits", "streams", "rules", "http", "log", "tracing", "rates", "realtime"}
    sections |= {"projects", "providers", "readers", "archive", "audit", "webhooks", "functions"}
    assert fields - keys - sections == {
        "accept_loss",
        "development",
        "listen_location",
        "location",
        "network",
        "quiet",
    }


def test_the_examples_in_the_example_file_are_valid(
    tmp_path: pathlib.Path,
) -> None:
    shown = re.sub(r"(?m)^# ?(?=\[|[a-z_]+ = )", "", EXAMPLE.read_text())
    shown = shown.replace('standby_of = ""', 'standby_of = "https://db1.example.com"')
    shop = load(tmp_path, shown).projects["shop"]
    assert shop.rules_file == tmp_path / "shop.rules.json"
    assert shop.max_token_life_s == 86_400.0
    assert [(each.audience, each.ca_file) for each in shop.providers] == [
        ("shop", tmp_path / "accounts.pem")
    ]


def test_errors_name_where_settings_come_from(tmp_path: pathlib.Path) -> None:
    settings = load(tmp_path, "[projects.shop]", listen=["tcp:0"])
    assert str(settings.location_of("shop").at("rules_file").error("is bad", "mend it")) == (
        "treedb.toml: projects.shop.rules_file is bad: mend it."
    )
    assert str(settings.listen_location.error("x", "y")) == "the command line: listen x: y."
    assert str(load(tmp_path, "").listen_location.error("x", "y")) == "treedb.toml: listen x: y."


def test_limits_of_rules_are_settings(tmp_path: pathlib.Path) -> None:
    settings = load(tmp_path, "[rules]\nexpression_bytes = 100\n")
    assert settings.rules.expression_bytes == 100
    assert settings.rules.nesting == 200
    settings = load(tmp_path, "[rules]\njudged_characters = 7\n")
    assert settings.rules.judged_characters == 7


def test_a_program_sets_plain_values(tmp_path: pathlib.Path) -> None:
    settings = Settings.from_values(
        folder=tmp_path,
        data="data",
        listen=("tcp:8080:interface=127.0.0.1",),
        default_project="app",
        projects={"app": {"rules_file": pathlib.Path("rules.json"), "databases": "*"}},
        limits={"streams": 7},
    )
    assert settings.data == tmp_path / "data"
    assert settings.projects["app"].rules_file == tmp_path / "rules.json"
    assert settings.projects["app"].databases is None
    assert settings.limits.streams == 7
    assert [endpoint.text for endpoint in settings.listen] == ["tcp:8080:interface=127.0.0.1"]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"dta": "x"}, r"the settings: dta is not a key \(did you mean data\?\)"),
        ({"limits": {"streams": "7"}}, "the settings: limits.streams must be an integer"),
        ({"data": 7}, "the settings: data must be a string"),
        ({"default_project": "app"}, r'which is not configured: add projects\["app"\] or remove'),
        (
            {"emulator": True, "listen": ["tcp:80"]},
            r"add interface=127.0.0.1, or set emulator = false\.$",
        ),
    ],
)
def test_a_bad_value_of_a_program_is_one_sentence(values: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Settings.from_values(**values)


def test_a_project_may_replace_rates(tmp_path: pathlib.Path) -> None:
    text = (
        "[rates]\nburst_s = 2\nrequests_per_uid = 5\n"
        "[projects.shop.rates]\nrequests_per_uid = 0\nbytes_per_project = 9\n"
    )
    settings = load(tmp_path, text)
    assert settings.rates == RateLimits(burst_s=2.0, requests_per_uid=5)
    assert settings.projects["shop"].rates == {"requests_per_uid": 0, "bytes_per_project": 9}


@pytest.mark.parametrize("line", ["burst_s = 2", "requests_per_address = 5", "request = 1"])
def test_a_rate_that_no_project_can_have_is_refused(tmp_path: pathlib.Path, line: str) -> None:
    sentence = load_error(tmp_path, f"[projects.shop.rates]\n{line}\n")
    assert f"projects.shop.rates.{line.split(maxsplit=1)[0]} is not a rate of a project" in sentence
    assert "requests_per_uid" in sentence


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("rates = 5", "rates must be a table"),
        ('rates = { writes_per_uid = "5" }', "rates.writes_per_uid must be an integer from 0 to"),
        ('create_databases = "users"', "create_databases must be one of rules, admin"),
        ("database_bytes = -1", "database_bytes must be an integer from 0 to"),
        ("database_nodes = 1.5", "database_nodes must be an integer from 0 to"),
    ],
)
def test_a_limit_of_a_project_that_is_none_is_refused(
    tmp_path: pathlib.Path, line: str, problem: str
) -> None:
    assert f"projects.shop.{problem}" in load_error(tmp_path, f"[projects.shop]\n{line}\n")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('endpoint = "127.0.0.1:4318"', "tracing.endpoint must be a URL such as http"),
        ('endpoint = "ftp://127.0.0.1"', "tracing.endpoint must be a URL such as http"),
        ('endpoint = "http://"', "tracing.endpoint must be a URL such as http"),
        ('endpoint = "http://a:99999"', "tracing.endpoint must be a URL such as http"),
        ('endpoint = "https://user:hush@a"', "put what is secret into OTEL_EXPORTER_OTLP_HEADERS"),
        ('endpoint = "https://a?key=hush"', "put what is secret into OTEL_EXPORTER_OTLP_HEADERS"),
        ("endpoint = 4318", "tracing.endpoint must be a string"),
        ("sample = 1.5", "tracing.sample must be a number from 0 to 1"),
        ("sample = nan", "tracing.sample must be a number from 0 to 1"),
        ("sample = true", "tracing.sample must be a number from 0 to 1"),
        ('service_name = ""', "tracing.service_name must be a name"),
    ],
)
def test_a_bad_setting_of_tracing_is_one_sentence_without_a_secret(
    tmp_path: pathlib.Path, text: str, sentence: str
) -> None:
    error = load_error(tmp_path, f"[tracing]\n{text}\n")
    assert sentence in error
    assert "hush" not in error


def test_the_endpoint_of_a_collector_has_the_path_of_otlp(tmp_path: pathlib.Path) -> None:
    for given in ("http://127.0.0.1:4318", "http://127.0.0.1:4318/"):
        settings = load(tmp_path, f'[tracing]\nendpoint = "{given}"\n')
        assert settings.tracing.endpoint == "http://127.0.0.1:4318/v1/traces"
    settings = load(tmp_path, '[tracing]\nendpoint = "https://a.example/otlp"\nsample = 0\n')
    assert settings.tracing == TracingSettings("https://a.example/otlp", 0.0)


def test_tracing_without_its_libraries_says_what_to_install(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    text = '[tracing]\nendpoint = "http://127.0.0.1:4318"\n'
    remedy = read_installation().line_for("opentelemetry")
    assert load_error(tmp_path, text).endswith(f"run {remedy}.")
    assert load(tmp_path, "[tracing]\nsample = 0.5\n").tracing.sample == 0.5


def test_an_endpoint_of_the_console_that_is_listed_too_is_one(tmp_path: pathlib.Path) -> None:
    named = ["tcp:9080:interface=127.0.0.1", "tcp:port=9000", "tcp:9080:interface=127.0.0.1"]
    settings = Settings.from_values(listen=["tcp:9000"], console_listen=named, folder=tmp_path)
    assert [each.text for each in settings.client_endpoints] == [
        "tcp:9000",
        "tcp:9080:interface=127.0.0.1",
    ]
    assert [settings.names_for_console(each) for each in settings.client_endpoints] == [True, True]
    assert not settings.names_for_console(attrs.evolve(settings.listen[0], is_proxied=True))


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('standby_of = "http://db.example.com"', "standby_of"),
        ('standby_of = "https://db.example.com/path"', "standby_of"),
        ('standby_of = "db.example.com"', "standby_of"),
        ('standby_of = "https://user@db.example.com"', "standby_of"),
        ('standby_of = "https://a"\nengine = "memory"', "standby_of"),
        ('standby_of = "https://a"\nengine = "postgresql://a/b"', "standby_of"),
        ('standby_of = "https://a"\nworkers = 2', "standby_of"),
        ('standby_of = "https://db.a"\nstandby_url = "https://DB.a:443/"', "standby_of"),
        ('standby_url = "ftp://a"', "standby_url"),
        ('standby_url = "https://a"', "standby_url"),
        ('standby_token_file = "tokens"', "standby_token_file"),
    ],
)
def test_a_standby_that_could_not_follow_is_an_error(
    tmp_path: pathlib.Path, text: str, key: str
) -> None:
    with pytest.raises(ConfigError, match=f"treedb.toml: {key} "):
        load(tmp_path, text)


def test_the_url_of_a_first_has_tls_or_is_of_this_machine(tmp_path: pathlib.Path) -> None:
    for url in ("https://db.example.com:8443", "http://127.0.0.1:9000", "http://[::1]:1"):
        assert load(tmp_path, f'standby_of = "{url}/"').standby_of == url


def test_the_audit_has_a_directory_of_its_own_and_needs_data(tmp_path: pathlib.Path) -> None:
    audit = '[audit]\ndirectory = "audit"\n'
    assert load(tmp_path, audit).audit.directory == tmp_path / "audit"
    assert load(tmp_path, '[audit]\ndirectory = ""\n').audit.directory is None
    for text, problem in (
        (f'data = "."\n{audit}', "is in the data directory"),
        (f'engine = "memory"\n{audit}', "in memory is not audited"),
    ):
        with pytest.raises(ConfigError, match=rf"audit\.directory.*{problem}"):
            load(tmp_path, text)
