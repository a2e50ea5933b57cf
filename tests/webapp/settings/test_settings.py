"""Settings: all problems at once, each with its variable, and no secret in a message."""

import logging
import re
import stat
from collections.abc import Mapping
from datetime import timedelta
from ipaddress import ip_network
from pathlib import Path

import pytest

from flows.kinds.gate import GatePolicy
from flows.payments.stripe.gateway import StripeAccount
from tests.support.settings import PUBLIC, SECRET, problems_in, variables_in
from webapp.limits import Arrivals
from webapp.logs.lines import LogSettings
from webapp.sandbox.settings import new_sandbox
from webapp.settings.sandboxed import with_sandbox
from webapp.settings.settings import (
    SECRET_NAMES,
    BadSettings,
    Settings,
    read_settings,
)

OTHER = "another secret of thirty-two bytes or more"


def key_file(home: Mapping[str, str]) -> Path:
    return Path(home["HOME"]) / ".local/share/elicit-url/key"


def test_local_server_needs_no_settings(home: dict[str, str]) -> None:
    settings = read_settings(home)
    assert settings.url == "http://127.0.0.1:8765"
    assert settings.is_local
    assert settings.store == f"sqlite:///{home['HOME']}/.local/share/elicit-url/elicit.db"
    assert (settings.origins, settings.proxies, settings.templates) == (frozenset(), (), ())


def test_host_and_port_change_url(home: dict[str, str]) -> None:
    assert read_settings(home, port=9000).url == "http://127.0.0.1:9000"
    assert read_settings(home, host="::1").url == "http://[::1]:8765"
    assert read_settings(home, host="localhost").url == "http://localhost:8765"


def test_local_key_is_created_once_and_only_readable_by_user(home: dict[str, str]) -> None:
    first = read_settings(home)
    path = key_file(home)
    key = path.read_bytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert len(key.strip()) >= 32
    second = read_settings(home)
    assert path.read_bytes() == key
    assert second.ring.fingerprints == first.ring.fingerprints
    assert key.strip().decode() not in repr(first)


def test_two_users_have_separate_keys(tmp_path: Path) -> None:
    rings = [
        read_settings({"XDG_DATA_HOME": str(tmp_path / name)}).ring.fingerprints
        for name in ("one", "other")
    ]
    assert rings[0] != rings[1]
    assert (tmp_path / "one/elicit-url/key").exists()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o601])
def test_key_file_readable_by_others_is_refused(home: dict[str, str], mode: int) -> None:
    read_settings(home)
    key_file(home).chmod(mode)
    (problem,) = problems_in(home)
    assert problem.startswith("ELICIT_SECRET:")
    assert "chmod 600" in problem


@pytest.mark.parametrize("content", [b"", b"\n", b"short\n"])
def test_truncated_key_file_is_reported_and_not_used(home: dict[str, str], content: bytes) -> None:
    read_settings(home)
    key_file(home).write_bytes(content)
    (problem,) = problems_in(home)
    assert problem.startswith("ELICIT_SECRET:")
    assert str(key_file(home)) in problem


def test_uncreatable_data_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (problem,) = problems_in({"XDG_DATA_HOME": str(tmp_path / "file")})
    assert problem.startswith("ELICIT_SECRET:")


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_secret_in_any_variable_is_read_and_makes_no_file(home: dict[str, str], name: str) -> None:
    # parity: F15
    settings = read_settings({**home, name: SECRET})
    assert len(settings.ring.fingerprints) == 1
    assert not key_file(home).exists()


def test_first_secret_variable_takes_precedence(home: dict[str, str]) -> None:
    both = {**home, SECRET_NAMES[1]: OTHER, SECRET_NAMES[0]: SECRET}
    alone = {**home, SECRET_NAMES[0]: SECRET}
    assert read_settings(both).ring.fingerprints == read_settings(alone).ring.fingerprints


def test_several_secrets_are_read_newest_first(home: dict[str, str]) -> None:
    ring = read_settings({**home, "ELICIT_SECRET": f"{OTHER}, {SECRET}"}).ring
    old = read_settings({**home, "ELICIT_SECRET": SECRET}).ring
    assert ring.fingerprints[1] == old.newest
    assert len(ring.fingerprints) == 2


@pytest.mark.parametrize("secret", ["short", "x" * 31, f"{SECRET},short", f"{SECRET},"])
def test_weak_secret_is_refused_without_repeating_secret(home: dict[str, str], secret: str) -> None:
    (problem,) = problems_in({**home, "ELICIT_SECRET": secret})
    assert problem.startswith("ELICIT_SECRET:")
    assert "elicit keys new" in problem
    assert "short" not in problem
    assert SECRET not in problem


def test_empty_secret_counts_as_unset(home: dict[str, str]) -> None:
    read_settings({**home, "ELICIT_SECRET": ""})
    assert key_file(home).exists()


def test_repr_of_settings_shows_no_secret(home: dict[str, str]) -> None:
    settings = read_settings({**home, **PUBLIC})
    assert SECRET not in repr(settings)
    assert SECRET not in str(settings)
    assert "***" in repr(settings.ring)


def test_public_url_needs_secret_from_environment(home: dict[str, str]) -> None:
    (problem,) = problems_in({**home, "ELICIT_URL": "https://elicit.example"})
    assert problem.startswith("ELICIT_SECRET:")
    assert not key_file(home).exists()
    settings = read_settings({**home, **PUBLIC})
    assert (settings.url, settings.is_local) == ("https://elicit.example", False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "elicit.example", ""])
def test_serving_beyond_loopback_needs_expose_setting(home: dict[str, str], host: str) -> None:
    environment = {**home, **PUBLIC}
    (problem,) = problems_in(environment, host=host)
    assert problem.startswith("ELICIT_EXPOSE:")
    assert (
        read_settings({**environment, "ELICIT_EXPOSE": "1"}, host=host).url == PUBLIC["ELICIT_URL"]
    )


@pytest.mark.parametrize("value", ["", "0", "true", "yes", "2"])
def test_expose_setting_accepts_only_1(home: dict[str, str], value: str) -> None:
    environment = {**home, **PUBLIC, "ELICIT_EXPOSE": value}
    assert len(problems_in(environment, host="0.0.0.0")) == 1


def test_exposed_server_needs_public_url(home: dict[str, str]) -> None:
    environment = {**home, "ELICIT_EXPOSE": "1", "ELICIT_SECRET": SECRET}
    (problem,) = problems_in(environment, host="0.0.0.0")
    assert problem.startswith("ELICIT_URL: required")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "elicit.example",
        "http://elicit.example",
        "https://elicit.example/a//b",
        "ftp://x",
        "https://u:p@elicit.example",
        "https://elicit.example?x",
        "https://ELICIT.example",
        "//x",
    ],
)
def test_invalid_url_is_reported_with_variable(home: dict[str, str], url: str) -> None:
    found = problems_in({**home, "ELICIT_URL": url, "ELICIT_SECRET": SECRET})
    assert variables_in(found) == ["ELICIT_URL"]


@pytest.mark.parametrize("url", ["https://[bad", "https://[::1", "https://a]b"])
def test_unparsable_url_is_reported_like_other_problems(home: dict[str, str], url: str) -> None:
    found = problems_in({**home, "ELICIT_URL": url, "ELICIT_SECRET": SECRET})
    assert found[0].startswith("ELICIT_URL:")


def test_trailing_slash_of_url_is_removed(home: dict[str, str]) -> None:
    assert read_settings({**home, **PUBLIC, "ELICIT_URL": "https://elicit.example/"}).url == (
        "https://elicit.example"
    )


def test_every_problem_is_reported_at_once(home: dict[str, str]) -> None:
    found = problems_in(
        {
            **home,
            "ELICIT_URL": "https://elicit.example/a//b",
            "ELICIT_SECRET": "short",
            "ELICIT_ORIGINS": "https://ok.example, nonsense https://x.example/path",
            "ELICIT_PROXIES": "10.0.0.0/8 nonsense 10.0.0.1/8",
            "ELICIT_TEMPLATES": home["HOME"] + "/missing",
        },
        host="0.0.0.0",
    )
    assert sorted(variables_in(found)) == [
        "ELICIT_EXPOSE",
        "ELICIT_ORIGINS",
        "ELICIT_ORIGINS",
        "ELICIT_PROXIES",
        "ELICIT_PROXIES",
        "ELICIT_SECRET",
        "ELICIT_TEMPLATES",
        "ELICIT_URL",
    ]


def test_folder_setting_is_read_literally(home: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "pages "
    folder.mkdir()
    assert read_settings({**home, "ELICIT_TEMPLATES": str(folder)}).templates == (folder,)
    for wrong in (" ", f" {tmp_path}"):
        assert variables_in(problems_in({**home, "ELICIT_TEMPLATES": wrong})) == [
            "ELICIT_TEMPLATES"
        ]


def test_valid_settings_are_read(home: dict[str, str]) -> None:
    settings = read_settings(
        {
            **home,
            **PUBLIC,
            "ELICIT_STORE": "sqlite:///x.db",
            "ELICIT_ORIGINS": "https://a.example,https://b.example:8443",
            "ELICIT_PROXIES": "10.0.0.0/8, ::1",
            "ELICIT_TEMPLATES": home["HOME"],
            "UNRELATED": "x",
        }
    )
    assert isinstance(settings, Settings)
    assert settings.store == "sqlite:///x.db"
    assert settings.origins == {"https://a.example", "https://b.example:8443"}
    assert settings.proxies == (ip_network("10.0.0.0/8"), ip_network("::1"))
    assert settings.templates == (Path(home["HOME"]),)


def test_provider_credentials_are_read_by_provider_name(tmp_path: Path) -> None:
    settings = read_settings(
        {
            "HOME": str(tmp_path),
            "ELICIT_GITHUB_CLIENT_ID": "an id",
            "ELICIT_GITHUB_CLIENT_SECRET": "a secret",
            "ELICIT_ACME_CLIENT_ID": "another id",
            "ELICIT_ACME_CLIENT_SECRET": "hunter2",
        }
    )
    assert settings.credentials == {
        "github": ("an id", "a secret"),
        "acme": ("another id", "hunter2"),
    }
    assert "hunter2" not in repr(settings)


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ("ELICIT_GITHUB_CLIENT_ID", "ELICIT_GITHUB_CLIENT_SECRET"),
        ("ELICIT_GITHUB_CLIENT_SECRET", "ELICIT_GITHUB_CLIENT_ID"),
        ("ELICIT_STRIPE_KEY", "ELICIT_STRIPE_WEBHOOK_SECRET"),
        ("ELICIT_STRIPE_WEBHOOK_SECRET", "ELICIT_STRIPE_KEY"),
    ],
)
def test_incomplete_registration_names_missing_variable(
    home: dict[str, str], given: str, missing: str
) -> None:
    assert problems_in({**home, given: "sk_test_1"}) == [
        f"{missing}: not set, and {given} is: set both of them, or neither."
    ]


def test_invalid_stripe_key_is_refused_without_repeating_key(
    home: dict[str, str],
) -> None:
    given = {"ELICIT_STRIPE_KEY": "pk_live_hunter2", "ELICIT_STRIPE_WEBHOOK_SECRET": "whsec_1"}
    assert variables_in(problems_in({**home, **given})) == ["ELICIT_STRIPE_KEY"]


def test_several_webhook_secrets_are_read_during_rotation(home: dict[str, str]) -> None:
    signs = {"ELICIT_STRIPE_WEBHOOK_SECRET": "whsec_new,whsec_old"}
    seller = read_settings({**home, "ELICIT_STRIPE_KEY": "sk_test_1", **signs}).sellers["stripe"]
    assert isinstance(seller, StripeAccount)
    assert seller.webhook_secrets == ("whsec_new", "whsec_old")
    assert not seller.is_live


def test_providers_are_read_from_configuration_folder(tmp_path: Path) -> None:
    folder = tmp_path / ".config" / "elicit-url"
    folder.mkdir(parents=True)
    (folder / "elicit.toml").write_text('[providers.acme]\nissuer = "https://acme.example"\n')
    assert read_settings({"HOME": str(tmp_path)}).providers["acme"].label == "Acme"


def test_file_in_working_directory_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elicit.toml").write_text('[providers.acme]\nissuer = "https://acme.example"\n')
    monkeypatch.chdir(tmp_path)
    assert "acme" not in read_settings({"HOME": str(tmp_path / "home")}).providers


def test_problem_of_declaration_is_reported_with_location(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[providers.github]\nissuer = "https://evil.example"\n')
    (problem,) = problems_in({"HOME": str(tmp_path), "ELICIT_CONFIG": str(file)})
    assert problem.startswith(f"ELICIT_CONFIG: {file}:1: providers.github: this name is built in")


def test_missing_configuration_file_is_reported_only_if_named(
    tmp_path: Path,
) -> None:
    read_settings({"HOME": str(tmp_path)})
    with pytest.raises(BadSettings, match=r"ELICIT_CONFIG: .* cannot be read"):
        read_settings({"HOME": str(tmp_path), "ELICIT_CONFIG": str(tmp_path / "nowhere.toml")})


def test_configuration_file_in_other_encoding_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "latin.toml"
    file.write_bytes(b"# caf\xe9\n")
    (problem,) = problems_in({"HOME": str(tmp_path), "ELICIT_CONFIG": str(file)})
    assert problem.startswith(f"ELICIT_CONFIG: {file} cannot be read: 'utf-8'")


def test_sandbox_simulates_only_unconfigured_providers(tmp_path: Path) -> None:
    sandbox = new_sandbox(url="http://127.0.0.1:8766", serves="http://127.0.0.1:8765")
    own = read_settings(
        {
            "HOME": str(tmp_path),
            "ELICIT_GITHUB_CLIENT_ID": "an id",
            "ELICIT_GITHUB_CLIENT_SECRET": "a secret",
        }
    )
    settings = with_sandbox(own, sandbox)
    assert settings.providers["github"] == own.providers["github"]
    assert settings.credentials["github"] == ("an id", "a secret")
    assert settings.providers["google"].issuer == "http://127.0.0.1:8766/oidc"
    assert settings.credentials["google"][0] == sandbox.client_id
    assert settings.sellers["stripe"].api == "http://127.0.0.1:8766/stripe"


def test_public_server_cannot_use_sandbox(tmp_path: Path) -> None:
    sandbox = new_sandbox(url="http://127.0.0.1:8766", serves="http://127.0.0.1:8765")
    settings = read_settings({"HOME": str(tmp_path), **PUBLIC})
    with pytest.raises(ValueError, match="on this machine only"):
        with_sandbox(settings, sandbox)


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("", GatePolicy(gates_destructive=True)),
        ("destructive", GatePolicy(gates_destructive=True)),
        ("off", GatePolicy(gates_destructive=False)),
        ("delete_*, wipe", GatePolicy(gates_destructive=False, patterns=("delete_*", "wipe"))),
        ("destructive,rm", GatePolicy(gates_destructive=True, patterns=("rm",))),
    ],
)
def test_gate_setting_selects_tools_which_need_approval(
    home: dict[str, str], text: str, policy: GatePolicy
) -> None:
    # parity: T1
    assert read_settings({**home, "ELICIT_GATE": text}).gate == policy


def test_gate_setting_off_cannot_be_combined_with_patterns(home: dict[str, str]) -> None:
    assert variables_in(problems_in({**home, "ELICIT_GATE": "off,delete_*"})) == ["ELICIT_GATE"]


def test_read_timeout_and_number_of_connections_are_settings() -> None:
    # finding: R10
    given = {"ELICIT_SECRET": SECRET, "ELICIT_READ_SECONDS": "5", "ELICIT_CONNECTIONS": "50"}
    assert read_settings(given).arrivals == Arrivals(reading=timedelta(seconds=5), connections=50)
    assert read_settings({"ELICIT_SECRET": SECRET}).arrivals == Arrivals()
    for name in ("ELICIT_READ_SECONDS", "ELICIT_CONNECTIONS"):
        for wrong in ("0", "-1", "soon", "1.5"):
            with pytest.raises(BadSettings, match=f"{name}: must be a whole number from 1"):
                read_settings({"ELICIT_SECRET": SECRET, name: wrong})


@pytest.mark.parametrize(
    ("host", "port", "url"),
    [("127.0.0.1", 80, "http://127.0.0.1"), ("::1", 80, "http://[::1]")],
)
def test_default_port_of_scheme_is_omitted_from_url(
    home: dict[str, str], host: str, port: int, url: str
) -> None:
    # finding: A2
    assert read_settings(home, host=host, port=port).url == url


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://127.0.0.1:80", "http://127.0.0.1"),
        ("https://elicit.example:443/", "https://elicit.example"),
        ("https://elicit.example:80", "https://elicit.example:80"),
    ],
)
def test_explicit_default_port_is_removed_from_url(
    home: dict[str, str], given: str, url: str
) -> None:
    # finding: A2
    named = {"ELICIT_URL": given, "ELICIT_SECRET": SECRET, "ELICIT_ORIGINS": given.rstrip("/")}
    settings = read_settings({**home, **named})
    assert settings.url == url
    assert settings.origins == {url}


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("ELICIT_GTE", "perhaps ELICIT_GATE is meant"),
        ("ELICIT_PORT", "elicit serve has the option --port for it"),
        ("ELICIT_PROT", "elicit serve has the option --port for it"),
        ("ELICIT_HOST", "elicit serve has the option --host for it"),
        ("ELICIT_WORKER", "elicit serve has the option --workers for it"),
        ("ELICIT_STRIPE_KYE", "perhaps ELICIT_STRIPE_KEY is meant"),
        ("ELICIT_GITHUB_CLIENT_IDD", "perhaps ELICIT_GITHUB_CLIENT_ID is meant"),
        ("ELICIT_MOLLIE_KEYS", "perhaps ELICIT_MOLLIE_KEY is meant"),
        ("ELICIT_ISSUER_CLIENT_SECRT", "perhaps ELICIT_ISSUER_CLIENT_SECRET is meant"),
        ("ELICIT_XYZZY_QQQ_WWW", "elicit settings lists them"),
    ],
)
def test_unknown_setting_is_refused_with_nearest_name(
    home: dict[str, str], wrong: str, right: str
) -> None:
    # finding: A3
    # finding: XQ10
    assert problems_in({**home, wrong: "off"}) == [f"{wrong}: no setting has this name; {right}."]


def test_credentials_of_custom_providers_are_accepted(home: dict[str, str], tmp_path: Path) -> None:
    # finding: A3
    mine = {"ELICIT_ACME_CLIENT_ID": "id", "ELICIT_ACME_CLIENT_SECRET": "secret"}
    assert read_settings({**home, **mine}).credentials == {"acme": ("id", "secret")}
    assert read_settings({**home, "ELICIT_UNHEARD_OF": " ", "OTHER": "1"}).is_local


def test_every_documented_setting_is_known(home: dict[str, str]) -> None:
    # finding: A3
    project = Path(__file__).parents[3]
    pages = "".join(
        page.read_text("utf-8")
        for page in (project / "README.md", *(project / "docs").rglob("*.md"))
    )
    named = set(re.findall(r"\bELICIT_[A-Z0-9_]*[A-Z0-9]\b(?![{_])", pages))
    # Examples in the documentation declare the providers and the table of these settings.
    named -= {
        name for name in named if re.match("ELICIT_(ACME|ORCHARD)_|ELICIT_NOTIFY_FINANCE$", name)
    }
    problems = problems_in({**home, **dict.fromkeys(named, "x"), "ELICIT_NO_SUCH_THING": "1"})
    unknown = [each for each in problems if "no setting has this name" in each]
    assert [each for each in unknown if "NO_SUCH_THING" not in each] == []


def test_hsts_setting_needs_https_url() -> None:
    # finding: S26
    given = {"ELICIT_SECRET": SECRET, "ELICIT_URL": "https://elicit.example"}
    assert read_settings(given).hsts is None
    assert read_settings({**given, "ELICIT_HSTS": "86400"}).hsts == timedelta(days=1)
    assert read_settings({**given, "ELICIT_HSTS": "0"}).hsts == timedelta()
    for wrong in ("-1", "a day", "1.5"):
        with pytest.raises(BadSettings, match="ELICIT_HSTS: must be a number of seconds"):
            read_settings({**given, "ELICIT_HSTS": wrong})
    with pytest.raises(BadSettings, match="ELICIT_HSTS: it needs a server behind https"):
        read_settings({"ELICIT_SECRET": SECRET, "ELICIT_HSTS": "60"})


def test_log_settings_are_read_and_mistakes_are_reported(home: dict[str, str]) -> None:
    read = read_settings({**home, "ELICIT_LOG": "json", "ELICIT_LOG_LEVEL": "INFO"}).log
    assert read == LogSettings(level=logging.INFO, is_json=True)
    assert read_settings(home).log == LogSettings()
    named = {"ELICIT_LOG": "xml", "ELICIT_LOG_LEVEL": "loud"}
    assert variables_in(problems_in({**home, **named})) == [*named]


PUBLIC_CLIENT = """
[providers.acme]
authorize = "https://acme.example/authorize"
token = "https://acme.example/token"
api = "https://acme.example"
person = { url = "https://acme.example/me", id = "id", label = "email" }
client_auth = "%s"
"""


@pytest.mark.parametrize(
    ("client_auth", "secret", "problem"),
    [
        ("none", "", None),
        ("none", "a secret", "ELICIT_ACME_CLIENT_SECRET: remove it"),
        ("basic", "", "ELICIT_ACME_CLIENT_SECRET: not set"),
        ("private_key_jwt", "a secret", "ELICIT_ACME_CLIENT_SECRET: must be a private key"),
        ("client_secret_jwt", "short", "ELICIT_ACME_CLIENT_SECRET: must have at least 32"),
        ("client_secret_jwt", "a secret of more than 32 bytes.......", None),
    ],
)
def test_client_secret_has_to_suit_the_declared_client_authentication(
    tmp_path: Path, home: dict[str, str], client_auth: str, secret: str, problem: str | None
) -> None:
    # finding: XO2
    path = tmp_path / "elicit.toml"
    path.write_text(PUBLIC_CLIENT % client_auth, "utf-8")
    given = {**home, "ELICIT_CONFIG": str(path), "ELICIT_ACME_CLIENT_ID": "id"}
    given |= {"ELICIT_ACME_CLIENT_SECRET": secret} if secret else {}
    if problem is None:
        assert read_settings(given).credentials["acme"] == ("id", secret)
    else:
        (reported,) = problems_in(given)
        assert reported.startswith(problem)
