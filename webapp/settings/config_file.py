"""The file `elicit.toml`, in which an operator declares providers in addition to the built-in ones.

Risks:

- A file uses the name or label of a built-in provider, and sends people to another site.
- An address has a parameter that the flow adds itself.
- The file contains a secret that others can read.

All of these are refused, and no error repeats a value of the file.
"""

import re
import tomllib
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast, get_args, get_type_hints
from urllib.parse import parse_qsl, urlsplit

from flows.errors import InvalidQuestion
from flows.oauth.access_token import Team
from flows.oauth.provider import (
    OUR_PARAMETERS,
    KnownRefusal,
    PersonProbe,
    Provider,
    ProviderKey,
    Revocation,
    TokenExchange,
)
from flows.payments.declared.declaration import ProviderDeclaration
from flows.providers import PROVIDERS
from flows.providers.catalogue import CATALOGUE
from webapp.identity.approvers import Approver
from webapp.notifications.delivery import NotifyTable
from webapp.settings import parsers
from webapp.settings.approver_tables import read_approvers, read_teams
from webapp.settings.identity import IssuerSettings
from webapp.settings.issuers import OfPeople, read_issuers
from webapp.settings.key_file import CONFIG_HOME, folder_of
from webapp.settings.notify import read_notify_tables
from webapp.settings.payment_providers import read_merchant_accounts
from webapp.settings.table import Setting, Values

_PLACE, _REFUSALS = "a text, or a table of texts", "a list of tables"
_KEY = "a table of texts, with a whole number for status"
_EXCHANGE = "a table of texts, with a table of texts for extra"
_PERSON = "a table of texts, with lists of texts for id and label"
_TYPES: Mapping[str, Any] = {
    **parsers.TYPES,
    _PLACE: str | dict[str, str],
    _REFUSALS: tuple[dict[str, Any], ...],
    _KEY: dict[str, str | int],
    _EXCHANGE: dict[str, str | dict[str, str]],
    _PERSON: dict[str, str | tuple[str, ...]],
}
_KEYS = {
    **parsers.keys_of(
        Provider,
        person=_PERSON,
        key=_KEY,
        revoke=_PLACE,
        refusals=_REFUSALS,
        exchange=_EXCHANGE,
        discovers=None,
        sandbox=None,
        issuer_tenants=None,
        algorithms=None,
    ),
    "like": parsers.TEXT,
}
_REFUSAL_KEYS = parsers.keys_of(KnownRefusal)
_KEY_KEYS = parsers.keys_of(ProviderKey)
_EXCHANGE_KEYS = parsers.keys_of(TokenExchange)
_LIKE: Mapping[str, Provider] = {**CATALOGUE, **PROVIDERS}
_TABLES = ("providers", "sellers", "issuers", "approvers", "teams", "notify")
_PAIRS = (
    "extra",
    "headers",
    "lasting",
    "refresh_extra",
    "switch",
    "token_extra",
)  # tables whose order is preserved
_PERSON_KEYS = frozenset(PersonProbe.__dataclass_fields__)
_REVOCATION_KEYS = frozenset(Revocation.__dataclass_fields__)
_SECRETS = re.compile(
    r"secret|passw|(private|api)[_-]?key|(access|refresh|bearer|auth)[_-]?token|token_value"
    r"|credential"
)
_DEPTH_AT_MOST = 32  # of nested tables and lists
# The keys of these tables are scopes or a provider's codes, so they may look like a secret.
_NAMES_OF_OTHERS = frozenset({"scope_words", "covers", "troubles"})
CONFIG = Setting(
    name="ELICIT_CONFIG",
    parse=str,
    otherwise="`elicit-url/elicit.toml` in the configuration folder",
    says="the file that declares further providers of accounts and payments, and "
    "[who approves](../how-to/approvals.md), who is notified, "
    "[teams](../how-to/providers.md#accounts-of-a-team), and "
    "[further issuers](../how-to/sign-in.md#several-issuers)",
    names_file=True,
)


class BadDeclaration(ValueError):
    """The file is invalid. `problems` has a sentence for each table and key."""

    def __init__(self, problems: list[str], *, source: str, text: str = "") -> None:
        """`text` is the content of the file, to find the line of each problem."""
        self.problems = problems
        lines = (f"{source}{_at_line(problem, text)}: {problem}" for problem in problems)
        super().__init__("\n".join(lines))


@dataclass(frozen=True, slots=True, kw_only=True)
class Declarations:
    """The declarations of a file, by name."""

    providers: Mapping[str, Provider] = field(default_factory=dict[str, Provider])
    sellers: Mapping[str, ProviderDeclaration] = field(
        default_factory=dict[str, ProviderDeclaration]
    )
    issuers: tuple[IssuerSettings, ...] = ()
    approvers: tuple[Approver, ...] = ()
    teams: tuple[Team, ...] = ()
    notify: tuple[NotifyTable, ...] = ()

    @property
    def of_people(self) -> OfPeople:
        """The declarations that have to agree with the issuers where people sign in."""
        return self.issuers, self.approvers, self.teams, self.providers


def config_path(values: Values) -> Path:
    """Return the path of `elicit.toml`: the value of ELICIT_CONFIG, or the default path."""
    given = values.environment.get(CONFIG.name)
    return Path(given) if given else folder_of(values.environment, CONFIG_HOME) / "elicit.toml"


def declared_in(values: Values) -> Declarations:
    """Return the declarations in `elicit.toml`, and add its faults to the problems."""
    given, path = values.environment.get(CONFIG.name), config_path(values)
    try:
        if not given and not _is_there(path):
            return Declarations()
        if path.exists() and not path.is_file():  # a device may have no end
            values.problems.append(f"ELICIT_CONFIG: {path} is not a file.")
            return Declarations()
        return read_declarations(path.read_text("utf-8"), source=str(path))
    except BadDeclaration as error:
        values.problems += [f"ELICIT_CONFIG: {line}" for line in str(error).splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        values.problems.append(f"ELICIT_CONFIG: {path} cannot be read: {error}")
    return Declarations()


def _is_there(path: Path) -> bool:
    """Return True if the path exists, even as a broken link. Raises OSError if access is denied."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def read_declarations(text: str, *, source: str) -> Declarations:
    """Return the declarations in the text. `source` is the name of the file in messages.

    Raises BadDeclaration with all problems at once.
    """
    try:
        found = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also if a number is too long
        where = re.search(r"\(at .*\)$", str(error))
        problem = f"it is not valid TOML {where[0] if where else ''}".rstrip() + "."
        raise BadDeclaration([problem], source=source, text=text) from None
    if _is_too_deep(found):
        raise BadDeclaration(["its tables are nested too deep."], source=source)
    problems = [
        f"{key}: unknown; only {', '.join(f'[{one}.NAME]' for one in _TABLES)} are allowed."
        + parsers.meant(key, _TABLES)
        for key in found
        if key not in _TABLES
    ]
    problems += _secrets_in(found)
    providers = _providers(_tables(found, "providers", problems), problems)
    sellers = read_merchant_accounts(_tables(found, "sellers", problems), problems)
    issuers = read_issuers(_tables(found, "issuers", problems), problems)
    approvers = read_approvers(_tables(found, "approvers", problems), problems)
    named = {*_LIKE, *_tables(found, "providers", [])}
    teams = read_teams(_tables(found, "teams", problems), problems, providers=named)
    notify = read_notify_tables(_tables(found, "notify", problems), problems)
    if problems:
        raise BadDeclaration(problems, source=source, text=text)
    return Declarations(
        providers=providers,
        sellers=sellers,
        issuers=issuers,
        approvers=approvers,
        teams=teams,
        notify=notify,
    )


def _at_line(problem: str, text: str) -> str:
    """Return `:12` for a problem in line 12."""
    position = re.search(r"\(at line (\d+), column \d+\)", problem)
    found = position[1] if position else parsers.line_of(text, problem.partition(":")[0])
    return "" if found is None else f":{found}"


def _is_too_deep(found: Mapping[str, Any]) -> bool:
    """Return True if the nesting is too deep.

    The check is a loop, because dotted keys can nest deeper than Python's recursion limit.
    """
    level: list[object] = [found]
    for _ in range(_DEPTH_AT_MOST):
        level = [part for one in level for part in _inside(one)]
    return bool(level)


def _inside(value: object) -> list[object]:
    if isinstance(value, dict):
        return [*cast("dict[str, object]", value).values()]
    return cast("list[object]", value) if isinstance(value, list) else []


def _tables(found: Mapping[str, Any], key: str, problems: list[str]) -> Mapping[str, Any]:
    tables = found.get(key, {})
    if isinstance(tables, dict):
        return cast("dict[str, Any]", tables)
    problems.append(f"{key}: it must be a table of tables, [{key}.NAME].")
    return {}


def _providers(tables: Mapping[str, Any], problems: list[str]) -> Mapping[str, Provider]:
    found = parsers.tables_in(tables, kind="providers", built_in=PROVIDERS, problems=problems)
    read = {name: _provider(name, table, problems) for name, table in found}
    return {name: provider for name, provider in read.items() if provider is not None}


def _provider(name: str, table: Mapping[str, Any], problems: list[str]) -> Provider | None:
    place = f"providers.{name}"
    faults = [*_key_faults(name, table)]
    known = {key: table[key] for key in table if key in _KEYS}
    # Keep values of the wrong type, so that the checks below report the other faults too.
    read = {**known, **parsers.converted(known, _KEYS, faults, types=_TYPES)}
    if "person" in read and not any(fault.startswith("person:") for fault in faults):
        faults += _person_faults(read["person"])
    if isinstance(read.get("key"), dict):
        faults += _api_key_faults(read["key"])
    if isinstance(read.get("exchange"), dict):
        faults += _exchange_faults(read["exchange"])
    if isinstance(read.get("revoke"), dict):
        faults += _revocation_faults(read["revoke"])
    for each in read["refusals"] if isinstance(read.get("refusals"), tuple) else ():
        faults += _refusal_faults(each)
    faults += _label_faults(read.get("label", parsers.label_of(name)))
    faults += _query_faults(read.get("authorize"), scope_parameter=read.get("scope_parameter"))
    if not faults:
        try:
            return _declared(name, read)
        except InvalidQuestion as error:
            faults += str(error).splitlines()
    problems += [f"{place}.{fault}" for fault in faults]
    return None


def _declared(name: str, read: dict[str, Any]) -> Provider:
    """Return the provider of a table. Raises InvalidQuestion."""
    like, tenant = read.pop("like", None), read.pop("tenant", None)
    values: dict[str, Any] = {"name": name, "label": parsers.label_of(name)}
    if like is None and "issuer" in read and "authorize" not in read and "token" not in read:
        values |= {"discovers": True, "always": ("openid",), "api": read["issuer"]}
    if read.get("refusals") == ():  # an empty list keeps the refusals of `like`
        del read["refusals"]
    values |= {key: make(read.pop(key)) for key, make in _MADE.items() if key in read}
    values |= {key: tuple(read.pop(key).items()) for key in _PAIRS if key in read}
    values |= read
    provider = Provider(**values) if like is None else replace(_LIKE[like], sandbox=None, **values)
    return provider if tenant is None else provider.for_tenant(tenant)


def _label_faults(label: object) -> Iterator[str]:
    for provider in PROVIDERS.values():
        if isinstance(label, str) and _as_read(label) == _as_read(provider.label):
            yield f"label: {provider.label} is built in; choose another one."


def _as_read(label: str) -> str:
    """Return the label in the form in which labels are compared.

    Ignore case, spaces and wide characters, because people hardly see such differences.
    """
    return "".join(unicodedata.normalize("NFKC", label).casefold().split())


def _query_faults(address: object, *, scope_parameter: object) -> Iterator[str]:
    """Yield a fault if the address already has a parameter that the flow adds.

    With two values of a parameter, a provider may use the first one, which the flow did not set.
    """
    try:
        query = urlsplit(address).query if isinstance(address, str) else ""
    except ValueError:  # not a URL: another check reports that
        return
    named = {name for name, _ in parse_qsl(query, keep_blank_values=True)}
    if taken := sorted(name for name in named if name in OUR_PARAMETERS or name == scope_parameter):
        yield (f"authorize: the flow sets {', '.join(taken)} itself; remove it from the query.")


def _revocation(declared: str | dict[str, Any]) -> Revocation:
    if isinstance(declared, str):
        return Revocation(url=declared)
    if declared.get("kind") == "github":  # the former name of "delete"
        declared["kind"] = "delete"
    return Revocation(**declared)


def _key_faults(name: str, table: Mapping[str, Any]) -> Iterator[str]:
    for key in table:
        if key == "client_id":
            yield f"client_id: not allowed in this file; set ELICIT_{name.upper()}_CLIENT_ID."
        elif key not in _KEYS and not _SECRETS.search(key.lower()):
            yield parsers.unknown_key(key, sorted(_KEYS))
    if "like" in table:
        if table["like"] not in _LIKE:
            yield f"like: must be one of {', '.join(sorted(_LIKE))}."
        return
    if not {"issuer", "authorize", "token", "key"} & set(table):
        yield "issuer: required, unless authorize and token are set. For API keys, set key."
    if "api" not in table and {"authorize", "token", "key"} & set(table):
        yield "api: required: the address of the API that the access token is for."


def _person_faults(person: Mapping[str, Any]) -> list[str]:
    faults = [f"person.{key}: required." for key in ("id", "label") if key not in person]
    faults += [
        f"person.{key}: must be a text."
        for key, value in person.items()
        if key not in ("id", "label") and not isinstance(value, str)
    ]
    faults += [
        f"person.{parsers.unknown_key(key, sorted(_PERSON_KEYS))}"
        for key in person
        if key not in _PERSON_KEYS
    ]
    return faults


def _revocation_faults(revoke: Mapping[str, Any]) -> Iterator[str]:
    if "url" not in revoke:
        yield "revoke.url: required."
    for key, value in revoke.items():
        if key not in _REVOCATION_KEYS:
            yield f"revoke.{parsers.unknown_key(key, sorted(_REVOCATION_KEYS))}"
        elif not isinstance(value, str):
            yield f"revoke: must be {_PLACE}."


def _api_key_faults(key: Mapping[str, Any]) -> list[str]:
    faults = [] if "page" in key else ["page: required: the address where people make a key."]
    parsers.converted(key, _KEY_KEYS, faults)
    return [f"key.{fault}" for fault in faults]


def _exchange_faults(exchange: Mapping[str, Any]) -> list[str]:
    faults = [] if "issuer" in exchange else ["issuer: required: the issuer of the people."]
    parsers.converted(exchange, _EXCHANGE_KEYS, faults)
    for name in ("kind", "subject_type"):
        allowed = get_args(get_type_hints(TokenExchange)[name])
        if exchange.get(name, allowed[0]) not in allowed:
            faults.append(f"{name}: must be one of {', '.join(allowed)}.")
    return [f"exchange.{fault}" for fault in faults]


def _exchange(read: dict[str, Any]) -> TokenExchange:
    fields: dict[str, Any] = {**read, "extra": tuple(read.get("extra", {}).items())}
    return TokenExchange(**fields)


# How the value of a key is made of a table inside the table of a provider.
_MADE: Mapping[str, Callable[[Any], object]] = {
    "person": lambda table: PersonProbe(**table),
    "revoke": _revocation,
    "key": lambda table: ProviderKey(**table),
    "exchange": _exchange,
    "refusals": lambda tables: tuple(KnownRefusal(**each) for each in tables),
}


def _refusal_faults(refusal: Mapping[str, Any]) -> list[str]:
    faults = list[str]()
    parsers.converted(refusal, _REFUSAL_KEYS, faults)
    return [f"refusals.{fault}" for fault in faults]


def _secrets_in(table: Mapping[str, Any], place: tuple[str, ...] = ()) -> Iterator[str]:
    for key, value in table.items():
        here = (*place, key)
        if _SECRETS.search(key.lower()) and not _is_header(here, value):
            name = here[1].upper() if len(here) > 2 else "NAME"
            variable = "KEY" if here[0] == "sellers" else "CLIENT_SECRET"
            yield (
                f"{'.'.join(here)}: a secret does not belong in this file; set "
                f"ELICIT_{name}_{variable} in the environment instead."
            )
        if isinstance(value, dict) and key not in _NAMES_OF_OTHERS:
            yield from _secrets_in(cast("dict[str, Any]", value), here)


def _is_header(place: tuple[str, ...], value: object) -> bool:
    """Return True for a header that contains the API key. Such a header can have any name."""
    return place[0] == "sellers" and place[2:3] == ("headers",) and "{secret}" in str(value)
