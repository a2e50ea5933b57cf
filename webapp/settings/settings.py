"""Settings: read once from a mapping; every problem is reported at once, naming its variable."""

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

from flows.crypto.vault import Ring
from flows.errors import InvalidQuestion, WeakSecret
from flows.kinds.gate import GatePolicy
from flows.oauth.provider import Provider
from flows.origin import is_loopback, origin_of
from flows.payments.gateway import MerchantAccount
from flows.payments.receipt import UNUSED_KEPT
from flows.providers import PROVIDERS
from webapp.http.guard import Network
from webapp.http.hsts import read_hsts
from webapp.http.trusted_hosts import TrustedHost, read_trusted_host
from webapp.limits import Arrivals
from webapp.logs.lines import LogSettings, read_log
from webapp.sandbox.settings import Sandbox
from webapp.settings.config_file import BadDeclaration, Declarations, read_declarations
from webapp.settings.durations import read_duration
from webapp.settings.environment import Variables, not_utf_8, words
from webapp.settings.identity import IdentitySettings, read_identity
from webapp.settings.key_file import KeyFile, data_folder, folder_of
from webapp.settings.payments import read_merchant_accounts
from webapp.settings.quotas import PolicySettings, read_policies
from webapp.stores import holds_something

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8765
SECRET_NAMES = (
    "ELICIT_SECRET",
    "MCP_ELICITATION_SECRET",
    "MCP_SESSION_SECRET",
    "MCP_SERVER_SECRET",
)

# Names of tools, with * and ? and [abc] for what differs.
_PATTERN = re.compile(r"(?:[\w.:/*?-]|\[!?[\w.:/-]+\])+")
_CLIENT = re.compile(r"ELICIT_(?!ISSUER_)([A-Z][A-Z0-9_]{0,31})_CLIENT_(?:ID|SECRET)")


class BadSettings(ValueError):
    """What is wrong with the environment; `problems` has a sentence for each variable."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    url: str
    ring: Ring
    store: str
    uid: int
    key_file: KeyFile | None = None
    origins: frozenset[str] = frozenset()
    proxies: tuple[Network, ...] = ()
    trusted_hosts: tuple[TrustedHost, ...] = ()
    templates: tuple[Path, ...] = ()
    providers: Mapping[str, Provider] = field(default_factory=lambda: dict(PROVIDERS))
    credentials: Mapping[str, tuple[str, str]] = field(
        default_factory=dict[str, tuple[str, str]], repr=False
    )
    sellers: Mapping[str, MerchantAccount] = field(default_factory=dict[str, MerchantAccount])
    refund_unused: timedelta | None = UNUSED_KEPT
    asks: bool | None = None  # whether providers are asked about open payments; None: as needed
    gate: GatePolicy = field(default_factory=GatePolicy)
    sandbox_url: str | None = None
    identity: IdentitySettings = field(default_factory=IdentitySettings)
    policies: PolicySettings = field(default_factory=PolicySettings)
    arrivals: Arrivals = field(default_factory=Arrivals)
    hsts: timedelta | None = None  # for how long browsers come back by https alone
    log: LogSettings = field(default_factory=LogSettings)

    @property
    def is_local(self) -> bool:
        return _is_local(self.url)

    @property
    def unreached(self) -> frozenset[str]:
        """The payment providers whose webhooks do not reach us: all others are not on loopback."""
        if self.asks is not None:
            return frozenset(self.sellers if self.asks else ())
        return frozenset(
            seller.name
            for seller in self.sellers.values()
            if self.is_local and not is_loopback(urlsplit(seller.api).hostname or "")
        )


def read_settings(
    environment: Mapping[str, str], *, host: str = DEFAULT_HOST, port: int = DEFAULT_PORT
) -> Settings:
    """Settings from variables.

    Local use needs none: a key file and a store are made in the data folder. Raises BadSettings.
    """
    problems = not_utf_8(environment)
    if problems:
        raise BadSettings(problems)
    environment = variables = Variables(environment)
    url = _url(environment, problems, host=host, port=port)
    is_local = _is_local(url)
    identity = read_identity(environment, problems)
    is_exposed = environment.get("ELICIT_EXPOSE") == "1" or identity.knows_people
    if not is_loopback(host) and not is_exposed:
        problems.append(
            f"ELICIT_EXPOSE: {host} reaches beyond this machine, where nobody can be asked unless "
            "people sign in (ELICIT_ISSUER); set it to 1 to serve there all the same."
        )
    folder = data_folder(environment)
    has_secret = any(environment.get(name) for name in SECRET_NAMES)
    key_file = None if has_secret else KeyFile(folder / "key")
    store = environment.get("ELICIT_STORE") or f"sqlite:///{folder / 'elicit.db'}"
    ring = _ring(environment, problems, file=key_file, is_local=is_local, store=store)
    credentials = _credentials(environment, problems)
    declared = _declared(environment, problems)
    settings = Settings(
        url=url,
        ring=ring or Ring([b"x" * 32]),
        store=store,
        uid=os.getuid(),
        key_file=key_file,
        origins=_origins(environment, problems),
        proxies=_proxies(environment, problems),
        trusted_hosts=_trusted_hosts(environment, problems),
        templates=_templates(environment, problems),
        providers={**PROVIDERS, **declared.providers},
        credentials=credentials,
        sellers=read_merchant_accounts(
            environment,
            problems,
            url=None if is_local else url,
            credentials=credentials,
            declared=declared.sellers,
        ),
        refund_unused=_refund_unused(environment, problems),
        asks=_asks(environment, problems),
        gate=_gate(environment, problems),
        identity=identity,
        policies=read_policies(environment, problems),
        arrivals=_arrivals(environment, problems),
        hsts=read_hsts(environment, problems, url=url),
        log=read_log(environment, problems),
    )
    problems += variables.unknown(more=_names_of(settings.providers))
    if problems:
        raise BadSettings(problems)
    return settings


def with_sandbox(settings: Settings, sandbox: Sandbox) -> Settings:
    """The same, with the sandbox for what is not configured.

    Raises ValueError unless the server is on loopback.
    """
    if not settings.is_local:
        raise ValueError("The sandbox is for a server on this machine only.")
    played = {
        name: provider.at(sandbox.url)
        for name, provider in settings.providers.items()
        if provider.sandbox is not None and name not in settings.credentials
    }
    credentials = dict.fromkeys(played, (sandbox.client_id, sandbox.client_secret))
    return replace(
        settings,
        providers={**settings.providers, **played},
        credentials={**settings.credentials, **credentials},
        sellers=settings.sellers or sandbox.merchant_accounts(),
        sandbox_url=sandbox.url,
    )


def _url(environment: Mapping[str, str], problems: list[str], *, host: str, port: int) -> str:
    shown = f"[{host}]" if ":" in host else host
    url = _shortest(environment.get("ELICIT_URL", f"http://{shown}:{port}").rstrip("/"))
    try:
        if origin_of(url) != url:
            problems.append("ELICIT_URL: it must be scheme://host[:port], without a path.")
    except InvalidQuestion as error:
        if "ELICIT_URL" in environment or is_loopback(host):
            problems.append(f"ELICIT_URL: {error}")
        else:
            problems.append(f"ELICIT_URL: needed, as people reach this server not at {url}.")
    return url


def _shortest(origin: str) -> str:
    """Without the port that its scheme has anyway, as browsers and clients name it."""
    scheme, _, rest = origin.partition("://")
    default = {"http": ":80", "https": ":443"}.get(scheme)
    return origin if default is None else f"{scheme}://{rest.removesuffix(default)}"


def _is_local(url: str) -> bool:
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False


def _ring(
    environment: Mapping[str, str],
    problems: list[str],
    *,
    file: KeyFile | None,
    is_local: bool,
    store: str,
) -> Ring | None:
    """Of the variables, or of that file where none of them is set."""
    for name in SECRET_NAMES:
        if environment.get(name):
            try:
                return Ring([part.strip().encode() for part in environment[name].split(",")])
            except WeakSecret as error:
                problems.append(f"{name}: {error}")
                return None
    if file is None or not is_local:
        problems.append("ELICIT_SECRET: needed here; make one with: elicit keys new")
        return None
    try:
        return file.ring(is_needed=holds_something, store=store)
    except (OSError, WeakSecret) as error:
        problems.append(f"ELICIT_SECRET: not set, and {file.path} cannot be used: {error}")
        return None


def _origins(environment: Mapping[str, str], problems: list[str]) -> frozenset[str]:
    origins = [_shortest(origin) for origin in words(environment, "ELICIT_ORIGINS")]
    for origin in origins:
        try:
            if origin_of(origin) != origin:
                problems.append(f"ELICIT_ORIGINS: {origin} is no origin (scheme://host[:port]).")
        except InvalidQuestion as error:
            problems.append(f"ELICIT_ORIGINS: {origin}: {error}")
    return frozenset(origins)


def _proxies(environment: Mapping[str, str], problems: list[str]) -> tuple[Network, ...]:
    networks: list[Network] = []
    for word in words(environment, "ELICIT_PROXIES"):
        try:
            networks.append(ipaddress.ip_network(word))
        except ValueError:
            problems.append(f"ELICIT_PROXIES: {word} is no address or network.")
    return tuple(networks)


def _trusted_hosts(environment: Mapping[str, str], problems: list[str]) -> tuple[TrustedHost, ...]:
    found: list[TrustedHost] = []
    for word in words(environment, "ELICIT_TRUSTED_HOSTS"):
        try:
            found.append(read_trusted_host(word))
        except ValueError:
            problems.append(
                f"ELICIT_TRUSTED_HOSTS: {word} is no host or network, with or without a port, as "
                "login.internal:8443 or 10.0.0.0/8."
            )
    return tuple(found)


def _templates(environment: Mapping[str, str], problems: list[str]) -> tuple[Path, ...]:
    name = environment.get("ELICIT_TEMPLATES")
    if not name:
        return ()
    if not Path(name).is_dir():
        problems.append(f"ELICIT_TEMPLATES: {name} is no folder.")
    return (Path(name),)


def _declared(environment: Mapping[str, str], problems: list[str]) -> Declarations:
    """What `elicit.toml` declares: from the path given, else the configuration folder."""
    given = environment.get("ELICIT_CONFIG")
    folder = folder_of(environment, "XDG_CONFIG_HOME", ".config")
    path = Path(given) if given else folder / "elicit.toml"
    try:
        if not given and not _is_there(path):
            return Declarations()
        if path.exists() and not path.is_file():  # a device may have no end
            problems.append(f"ELICIT_CONFIG: {path} is no file.")
            return Declarations()
        return read_declarations(path.read_text("utf-8"), source=str(path))
    except BadDeclaration as error:
        problems.extend(f"ELICIT_CONFIG: {line}" for line in str(error).splitlines())
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"ELICIT_CONFIG: {path} cannot be read: {error}")
    return Declarations()


def _is_there(path: Path) -> bool:
    """Whatever it is, a link that leads nowhere as well. Raises OSError where nobody may look."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _credentials(
    environment: Mapping[str, str], problems: list[str]
) -> Mapping[str, tuple[str, str]]:
    """Our client id and secret at a provider, for each ELICIT_{NAME}_CLIENT_ID."""
    found: dict[str, tuple[str, str]] = {}
    names = {
        match[1] for name in environment if (match := _CLIENT.fullmatch(name)) and environment[name]
    }
    for name in sorted(names):
        id = environment.get(f"ELICIT_{name}_CLIENT_ID", "").strip()
        secret = environment.get(f"ELICIT_{name}_CLIENT_SECRET", "").strip()
        if id and secret:
            found[name.lower()] = (id, secret)
        else:
            missing = "CLIENT_SECRET" if id else "CLIENT_ID"
            problems.append(f"ELICIT_{name}_{missing}: not set, and the other one is.")
    return found


def _names_of(providers: Mapping[str, Provider]) -> list[str]:
    """The variables of those that we know; an author's code may have others."""
    return [
        f"ELICIT_{name.upper()}_CLIENT_{which}" for name in providers for which in ("ID", "SECRET")
    ]


def _refund_unused(environment: Mapping[str, str], problems: list[str]) -> timedelta | None:
    """How long a payment that nobody used is kept; None: until somebody gives it back."""
    text = environment.get("ELICIT_REFUND_UNUSED", "").strip()
    if not text:
        return UNUSED_KEPT
    if text == "0":
        return None
    found = read_duration(text)
    if found is None:
        problems.append("ELICIT_REFUND_UNUSED: it is 7d, 12h or 30m and the like, or 0 for never.")
    return found


def _asks(environment: Mapping[str, str], problems: list[str]) -> bool | None:
    text = environment.get("ELICIT_ASK", "").strip()
    if text not in ("", "0", "1"):
        problems.append("ELICIT_ASK: it is 1 to ask about every open payment, or 0 to ask of none.")
    return None if text not in ("0", "1") else text == "1"


def _gate(environment: Mapping[str, str], problems: list[str]) -> GatePolicy:
    """Which tools wait for an approval although nothing in the server's code says so."""
    names = words(environment, "ELICIT_GATE") or ["destructive"]
    if names == ["off"]:
        return GatePolicy(gates_destructive=False)
    if "off" in names:
        problems.append("ELICIT_GATE: off stands alone, or leave it out.")
    patterns = tuple(word for word in names if word != "destructive")
    problems += [
        f"ELICIT_GATE: {word!r} is no tool's name and no pattern of names, as delete_*."
        for word in patterns
        if not _PATTERN.fullmatch(word)
    ]
    return GatePolicy(gates_destructive="destructive" in names, patterns=patterns)


def _arrivals(environment: Mapping[str, str], problems: list[str]) -> Arrivals:
    """How long a request may take to come, and how many connections there may be."""
    usual = Arrivals()
    found = {
        "ELICIT_READ_SECONDS": int(usual.reading.total_seconds()),
        "ELICIT_CONNECTIONS": usual.connections,
    }
    for name in found:
        text = environment.get(name, "").strip()
        if text and not re.fullmatch(r"[1-9][0-9]{0,5}", text):
            problems.append(f"{name}: it is a number from 1 to 999999.")
        elif text:
            found[name] = int(text)
    return Arrivals(
        reading=timedelta(seconds=found["ELICIT_READ_SECONDS"]),
        connections=found["ELICIT_CONNECTIONS"],
    )
