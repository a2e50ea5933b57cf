"""The settings of a server, read once from a mapping. Every problem names its variable."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from tempfile import gettempdir
from typing import Any
from urllib.parse import urlsplit

from flows.crypto.tokens import Ring
from flows.errors import StoreUnavailable, WeakSecret
from flows.kinds.gate import GatePolicy
from flows.oauth.client_assertion import key_fault
from flows.oauth.provider import Provider
from flows.origin import is_loopback
from flows.payments.gateway import MerchantAccount
from flows.providers import PROVIDERS
from flows.providers.catalogue import CATALOGUE
from webapp.events.addresses import EventAddress
from webapp.http.address import TrustedHost, is_below
from webapp.http.edge import Network
from webapp.limits import Arrivals
from webapp.logs.lines import LogSettings
from webapp.notifications.delivery import NotifyTable
from webapp.settings import events, identity, issuers, parsers, payments
from webapp.settings.brand import Brand
from webapp.settings.config_file import CONFIG, Declarations, config_path, declared_in
from webapp.settings.identity import IdentitySettings, IssuerSettings, read_identity
from webapp.settings.key_file import CONFIG_HOME, DATA_HOME, KeyFile, data_folder
from webapp.settings.notify import NOTIFY, with_addresses
from webapp.settings.quotas import PolicySettings
from webapp.settings.table import Setting, Values, not_utf_8, rows_of, setting
from webapp.settings.telemetry import TELEMETRY, TelemetrySettings, read_telemetry
from webapp.stores import holds_something, why_not_opened


def _absolute(text: str) -> Path | None:
    path = Path(text)
    return path if path.is_absolute() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """The settings of one process. `runtime` is None if the user has no runtime folder."""

    instance: str = setting(
        "ELICIT_INSTANCE",
        parse=parsers.matching(
            r"(?:[a-z0-9][a-z0-9-]{0,31})?",
            "is not a valid instance name: up to 32 lower-case letters, digits and hyphens.",
        ),
        says="the name by which a proxy routes to this instance, if several machines or processes "
        "serve one store: such as `a`. Session ids end with it (docs/how-to/deployment.md)",
    )
    runtime: Path | None = setting(
        "XDG_RUNTIME_DIR",
        parse=_absolute,
        otherwise="the folder for temporary files",
        says="the folder for the sockets between the processes of one server on a machine; only "
        "their user can enter it",
        names_file=True,
    )

    def folder(self, uid: int) -> Path:
        """Return the folder for the sockets of all servers of this user."""
        return (self.runtime or Path(gettempdir())) / f"elicit-{uid}"


DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8765
DEFAULT_URL = f"http://{DEFAULT_HOST}:{DEFAULT_PORT}"
URL = Setting(
    name="ELICIT_URL",
    parse=str,
    otherwise="`--host` and `--port`",
    says="the address at which people open the server, `scheme://host[:port]`, with a path if it "
    "has one: `https://example.com/tools`",
)
SECRET = Setting(
    name="ELICIT_SECRET",
    parse=str,
    otherwise="on loopback only: a key file, created once",
    says="the secret that encrypts everything, at least 32 bytes, from `elicit keys new`; several, "
    "separated by commas: the first one encrypts, all of them decrypt",
)
SECRETS = (
    SECRET,
    *(
        replace(SECRET, name=f"MCP_{which}_SECRET", says="used if no secret above is set")
        for which in ("ELICITATION", "SESSION", "SERVER")
    ),
)
SECRET_NAMES = tuple(row.name for row in SECRETS)
# More than 60 seconds, after which nginx and load balancers close an idle connection to us.
_IDLE_BEHIND_PROXY = timedelta(seconds=75)
STORE = Setting(
    name="ELICIT_STORE",
    parse=str,
    otherwise="a file in the data folder",
    says="`sqlite:////absolute/file.db`, `sqlite:///relative.db`, `memory:` (for one process: "
    "not with several workers), or for several machines "
    "`postgresql://user:password@host/name` or `valkey://user:password@host`: "
    "[stores](../how-to/stores.md). SQLite 3.32 or newer, on a disk of this machine. Only the "
    "server's user may have access to the file and its folder. If others have access, the server "
    "refuses to start and names the command that fixes it",
    names_file=True,
)
EXPOSE = Setting(
    name="ELICIT_EXPOSE",
    parse=lambda text: text == "1",
    says="`1` allows a `--host` that is not loopback although people neither sign in "
    "(`ELICIT_ISSUER`) nor enter a one-time code (`ELICIT_BIND`, `ELICIT_ANONYMOUS`)",
)
READ_SECONDS = Setting(
    name="ELICIT_READ_SECONDS",
    parse=parsers.count(999_999),
    default="30",
    says="the time limit for a request's head, and then for its body, in seconds",
)
CONNECTIONS = Setting(
    name="ELICIT_CONNECTIONS",
    parse=parsers.count(999_999),
    default="900",
    says="the maximum number of connections of a process; 50 more are reserved for the user who "
    "runs the server. The system must let a process open more files than that",
)


class BadSettings(ValueError):
    """The environment is invalid. `problems` has a sentence for each variable."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    url: str
    ring: Ring
    store: str = field(repr=False)  # the address may contain a password
    uid: int
    key_file: KeyFile | None = None
    providers: Mapping[str, Provider] = field(default_factory=lambda: dict(PROVIDERS))
    credentials: Mapping[str, tuple[str, str]] = field(
        default_factory=dict[str, tuple[str, str]], repr=False
    )
    sellers: Mapping[str, MerchantAccount] = field(default_factory=dict[str, MerchantAccount])
    server: str | None = setting(
        "ELICIT_SERVER",
        parse=lambda text: text or None,
        otherwise="the demo tools",
        says="the server that `elicit serve` without an argument serves, as `module:attribute`: "
        "`my_tools:mcp`",
    )
    store_listen: str = setting(
        "ELICIT_STORE_LISTEN",
        parse=str,
        otherwise="`ELICIT_STORE`",
        says="if PostgreSQL is behind PgBouncer or a similar pooler: the direct address of the "
        "same database, for the one connection on which a process listens for changes by "
        "others",
    )
    refund_unused: timedelta | None = setting(
        "ELICIT_REFUND_UNUSED",
        parse=parsers.unused_for,
        default="7d",
        says="the time after which an unused payment is refunded automatically: a duration such as "
        "`7d`, `12h`, `30m` or `90s`, or `0` for never",
    )
    # True: poll providers for open payments. None: only if webhooks cannot reach us.
    asks: bool | None = setting(
        "ELICIT_ASK",
        parse=parsers.asks_of_payments,
        otherwise="`1` if their webhooks cannot reach this server, because it is at a loopback "
        "address",
        says="`1`: the server polls payment providers about open payments, some seconds after "
        "Continue and then less often; `0`: it does not poll",
    )
    gate: GatePolicy = setting(
        "ELICIT_GATE",
        parse=parsers.gate,
        default="destructive",
        says="which tools wait for a person's approval before they start: `destructive` (tools "
        "annotated with `destructiveHint: true`), patterns of tool names such as `delete_*`, "
        "or both, separated by commas; `off`: none. Patterns replace the default unless they "
        "include it. Tools decorated with `@elicit.gate` always wait",
    )
    has_sandbox: bool = setting(
        "ELICIT_SANDBOX",
        parse=parsers.switch,
        default="0",
        says="`1`: a sandbox on the port after the server's, or on a free port if that one is in "
        "use, simulates the account and payment providers that are not set up, as with "
        "`--sandbox`; on this machine only",
    )
    sandbox_url: str | None = None
    identity: IdentitySettings = field(default_factory=IdentitySettings)
    policies: PolicySettings = field(default_factory=PolicySettings)
    arrivals: Arrivals = field(default_factory=Arrivals)
    processes: ProcessSettings = field(default_factory=ProcessSettings)
    origins: frozenset[str] = setting(
        "ELICIT_ORIGINS",
        parse=lambda text: frozenset(parsers.each(parsers.origin)(text)),
        says="web origins whose pages can call tools here, such as `http://localhost:6274` of a "
        "client that runs in a browser; pages of other origins cannot",
    )
    # The time for which browsers must use https only.
    hsts: timedelta | None = setting(
        "ELICIT_HSTS",
        parse=parsers.seconds,
        otherwise="not sent",
        says="the number of seconds for which browsers use only https "
        "(`Strict-Transport-Security`), behind https. It applies to every port of the host "
        "name, never to subdomains. To end it early, set `0`",
    )
    trusted_hosts: tuple[TrustedHost, ...] = setting(
        "ELICIT_TRUSTED_HOSTS",
        parse=parsers.each(parsers.trusted_host),
        says="your own hosts or networks, each with its port (default 443), where the issuer, "
        "account providers and payment providers that you configure can be: "
        "`login.internal:8443, 10.1.0.0/16`. All other addresses, and all that tools, models "
        "and clients name, must be on the public internet",
    )
    proxies: tuple[Network, ...] = setting(
        "ELICIT_PROXIES",
        parse=parsers.each(parsers.network),
        says="addresses or networks of proxies whose forwarded headers are trusted",
    )
    # The part of the path that a proxy strips. If unset, the ASGI server's root_path is used.
    taken_path: str = setting(
        "ELICIT_ROOT_PATH",
        parse=parsers.url_path,
        says="the part of `ELICIT_URL`'s path that a proxy strips before it forwards a request, "
        "such as `/tools`, if `--root-path` is not set",
    )
    templates: tuple[Path, ...] = setting(
        "ELICIT_TEMPLATES",
        parse=parsers.folders,
        says="a folder with templates that replace the built-in ones. Files for these templates "
        "are in its folder `static`: [templates](../how-to/pages.md#templates)",
        names_file=True,
    )
    brand: Brand = field(default_factory=Brand)
    telemetry: TelemetrySettings = field(default_factory=TelemetrySettings)
    events: tuple[EventAddress, ...] = ()
    notify: tuple[NotifyTable, ...] = ()
    config: Path | None = None  # the path of `elicit.toml`, which may not exist

    @property
    def log(self) -> LogSettings:
        """The log settings. If operators are named, log lines with an id link to a search page."""
        log = self.telemetry.log
        if not self.identity.operators.names_somebody:
            return log
        return replace(log, search_url=f"{self.url.rstrip('/')}/operator/search")

    @property
    def root_path(self) -> str:
        """The path under which the server is reached, without a slash at the end."""
        return urlsplit(self.url).path

    @property
    def is_local(self) -> bool:
        return _is_local(self.url)

    @property
    def unreached(self) -> frozenset[str]:
        """The payment providers to poll. The default: those whose webhooks cannot reach us."""
        if self.asks is not None:
            return frozenset(self.sellers if self.asks else ())
        return frozenset(
            seller.name
            for seller in self.sellers.values()
            if self.is_local and not is_loopback(urlsplit(seller.api).hostname or "")
        )


# Every setting, in the order of docs/reference/settings.md.
TABLE: tuple[Setting[Any], ...] = (
    *(URL, *SECRETS, STORE, CONFIG),
    *payments.PAYMENTS,
    *(row for one in (Settings, Brand, PolicySettings) for row in rows_of(one).values()),
    *events.EVENTS,
    NOTIFY,
    *identity.IDENTITY,
    *issuers.CLIENT_OF_ISSUER,
    *(EXPOSE, READ_SECONDS, CONNECTIONS),
    *TELEMETRY,
    *(DATA_HOME, CONFIG_HOME),
    *rows_of(ProcessSettings).values(),
)


def read_settings(
    environment: Mapping[str, str] | None = None,
    *,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
) -> Settings:
    """Return the settings. Local use needs no variable: a key file and a store are created.

    Args:
        environment: The variables. The default is the environment of this process.
        host: The host of the server's address if ELICIT_URL is not set.
        port: The port of the server's address if ELICIT_URL is not set.

    Raises:
        BadSettings: A setting is invalid. The message names each invalid setting.
    """
    environment = os.environ if environment is None else environment
    if problems := not_utf_8(environment, TABLE):
        raise BadSettings(problems)
    values = Values(environment)
    problems, url = values.problems, _url(values, host=host, port=port)
    is_local = _is_local(url)
    declared, who = declared_in(values), read_identity(values)
    who = issuers.with_file(who, declared.of_people, values)
    if not is_loopback(host) and not values.read(EXPOSE) and not who.can_ask_people:
        problems.append(
            f"ELICIT_EXPOSE: {host} can be reached from other machines, where nobody can be asked "
            "unless people sign in (ELICIT_ISSUER); set it to 1 to serve there anyway."
        )
    key_file, store = key_file_of(environment), store_of(environment)
    ring = _ring(values, file=key_file, is_local=is_local, store=store)
    providers = {**PROVIDERS, **declared.providers}
    credentials = _credentials(values, {**CATALOGUE, **providers}, tables=declared.issuers)
    fields = values.fields_of(Settings)
    settings = Settings(
        url=url,
        ring=ring or Ring([b"x" * 32]),
        store=store,
        uid=os.getuid(),
        key_file=key_file,
        providers=providers,
        credentials=credentials,
        sellers=payments.read_merchant_accounts(
            values,
            url=None if is_local else url,
            credentials=credentials,
            declared=declared.sellers,
        ),
        identity=who,
        policies=PolicySettings(**values.fields_of(PolicySettings)),
        processes=ProcessSettings(**values.fields_of(ProcessSettings)),
        arrivals=Arrivals(
            reading=timedelta(seconds=values.read(READ_SECONDS)),
            connections=values.read(CONNECTIONS),
            idle=_IDLE_BEHIND_PROXY if fields["proxies"] else Arrivals().idle,
        ),
        brand=Brand(**values.fields_of(Brand)),
        telemetry=read_telemetry(values),
        events=events.read_events(values),
        notify=with_addresses(declared.notify, values, who=who, config=config_path(values)),
        config=config_path(values),
        **fields,
    )
    if not problems and not is_below(settings.root_path, settings.taken_path):
        problems.append(f"ELICIT_ROOT_PATH: the path of ELICIT_URL ({url}) must begin with it.")
    if settings.hsts is not None and not url.startswith("https:"):
        problems.append(f"ELICIT_HSTS: it needs a server behind https, but ELICIT_URL is {url}.")
    values.refuse_unknown(_known(environment, declared), former=payments.former(declared.sellers))
    if problems:
        raise BadSettings(problems)
    return settings


def unknown_names(environment: Mapping[str, str]) -> list[str]:
    """Return a sentence for each set variable that begins with ELICIT_ but is not a setting."""
    values = Values(environment)
    declared = declared_in(values)
    known = [*_known(environment, declared)]
    values.problems.clear()
    values.refuse_unknown(known, former=payments.former(declared.sellers))
    return values.problems


def key_file_of(environment: Mapping[str, str]) -> KeyFile | None:
    """Return the key file, or None if a variable contains a secret."""
    has_secret = any(environment.get(name) for name in SECRET_NAMES)
    return None if has_secret else KeyFile(data_folder(environment) / "key")


def store_of(environment: Mapping[str, str]) -> str:
    folder = data_folder(environment)
    return environment.get(STORE.name) or f"sqlite:///{folder / 'elicit.db'}"


def _url(values: Values, *, host: str, port: int) -> str:
    environment, problems = values.environment, values.problems
    shown = f"[{host}]" if ":" in host else host
    url = environment.get("ELICIT_URL", f"http://{shown}:{port}").rstrip("/")
    try:
        return parsers.public_url(url)
    except ValueError as error:
        if "ELICIT_URL" in environment or is_loopback(host):
            problems.append(f"ELICIT_URL: {error}")
        else:
            problems.append(
                f"ELICIT_URL: required, because people cannot reach this server at {url}. Set it "
                "to the address that they open, for example https://tools.example.com."
            )
    return url


def _is_local(url: str) -> bool:
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False


def _ring(values: Values, *, file: KeyFile | None, is_local: bool, store: str) -> Ring | None:
    """Return the secrets from the variables, or from the file if no variable is set."""
    for name in SECRET_NAMES:
        if text := values.environment.get(name):
            try:
                return Ring([part.strip().encode() for part in text.split(",")])
            except WeakSecret as error:
                values.problems.append(f"{name}: {error}")
                return None
    if file is None or not is_local:
        values.problems.append("ELICIT_SECRET: required here; create one with: elicit keys new")
        return None
    try:
        return file.ring(is_needed=holds_something, store=store)
    except (OSError, WeakSecret) as error:
        values.problems.append(f"ELICIT_SECRET: not set, and {file.path} cannot be used: {error}")
        return None
    except (StoreUnavailable, ValueError) as error:
        values.problems.append(why_not_opened(error))
        return None


def _credentials(
    values: Values, providers: Mapping[str, Provider], *, tables: Sequence[IssuerSettings]
) -> Mapping[str, tuple[str, str]]:
    """Return client id and secret of each provider. A public client has an empty secret."""
    found: dict[str, tuple[str, str]] = {}
    for name in _registered(values.environment, tables):
        rows = [row.of(name) for row in payments.OF_ACCOUNTS]
        id, secret = map(values.text, rows)
        provider = providers.get(name.lower())
        client_auth = "basic" if provider is None else provider.client_auth
        if client_auth == "none" and secret:
            values.problems.append(
                f"{rows[1].name}: remove it: {name.lower()} is declared as a public client."
            )
        if id and (secret or client_auth == "none"):
            found[name.lower()] = (id, secret)
            fault = key_fault(secret, client_auth=client_auth)
            values.problems += [] if fault is None else [f"{rows[1].name}: {fault}"]
        else:
            missing, present = (rows[1], rows[0]) if id else rows
            values.lack(missing.name, present=present.name)
    return found


def _registered(environment: Mapping[str, str], tables: Sequence[IssuerSettings]) -> list[str]:
    """Return the upper-case names of the providers for which a client id or secret is set."""
    others = {*issuers.names_of_issuers(tables)}
    matches = [
        row.match(name)
        for row in payments.OF_ACCOUNTS
        for name, value in environment.items()
        if value and name not in others
    ]
    return sorted({match[1] for match in matches if match is not None})


def _known(environment: Mapping[str, str], declared: Declarations) -> Iterator[str]:
    """Yield all valid variable names, also for undeclared providers with a client id or secret."""
    yield from (row.name for row in TABLE if not row.is_of_providers)
    yield from (row.of(n).name for n in events.names_in(environment) for row in events.EVENTS)
    yield from (NOTIFY.of(table.name).name for table in declared.notify)
    yield from issuers.names_of_issuers(declared.issuers)
    for provider in (*PROVIDERS, *declared.providers, *_registered(environment, declared.issuers)):
        yield from (row.of(provider).name for row in payments.OF_ACCOUNTS)
    yield from payments.names_of(declared.sellers)
