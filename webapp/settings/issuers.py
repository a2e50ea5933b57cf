"""`[issuers.NAME]` in `elicit.toml`: issuers where people sign in, in addition to ELICIT_ISSUER.

Risks: two issuers have the same `iss` value, or a token is sent to the wrong issuer to be checked.
`iss` values are therefore compared exactly, and only one issuer can check tokens that are not JWTs,
because such a token does not say which issuer made it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias, get_args

from flows.errors import InvalidQuestion
from flows.oauth.access_token import SUBJECT_CLAIM, Team
from flows.oauth.client_assertion import key_fault
from flows.oauth.declaration import ClientAuth
from flows.oauth.id_token import ALGORITHMS
from flows.oauth.provider import Client, Provider
from webapp.identity.approvers import Approver
from webapp.settings.approver_tables import with_teams
from webapp.settings.identity import (
    CLIENT_ID,
    CLIENT_SECRET,
    IdentitySettings,
    IssuerSettings,
    claim_of,
    provider_of,
    scopes_of,
    with_approvers,
)
from webapp.settings.parsers import (
    FLAG,
    TEXT,
    TEXTS,
    converted,
    faults_of_value,
    label_faults,
    tables_in,
)
from webapp.settings.table import Setting, Values

_KEYS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("issuer", "label", "client_auth"), TEXT),
    **dict.fromkeys(("claim", "audiences", "scopes", "advertised_scopes"), TEXTS),
    **dict.fromkeys(("tenants", "algorithms"), TEXTS),
    **dict.fromkeys(("introspect", "dpop"), FLAG),
}
LABEL_AT_MOST: Final = 40
CLIENT_OF_ISSUER: Final = (
    Setting(
        name="ELICIT_ISSUER_{NAME}_CLIENT_ID",
        parse=str,
        says="the client id of the pages at the issuer of `[issuers.NAME]` in `elicit.toml`",
    ),
    Setting(
        name="ELICIT_ISSUER_{NAME}_CLIENT_SECRET",
        parse=str,
        says="the client secret of the pages at that issuer; for `private_key_jwt` the private key",
    ),
)


def names_of_issuers(tables: Sequence[IssuerSettings]) -> Iterator[str]:
    """Yield the variables of the client id and secret, for ELICIT_ISSUER and for each table."""
    yield from (CLIENT_ID.name, CLIENT_SECRET.name)
    yield from (row.of(table.name).name for table in tables for row in CLIENT_OF_ISSUER)


def read_issuers(tables: Mapping[str, Any], problems: list[str]) -> tuple[IssuerSettings, ...]:
    """Return the issuers of the tables, and add faults to `problems`."""
    found = [
        _table(name, table, problems)
        for name, table in tables_in(tables, kind="issuers", built_in=(), problems=problems)
    ]
    return tuple(one for one in found if one is not None)


def _table(name: str, table: dict[str, Any], problems: list[str]) -> IssuerSettings | None:
    faults = list[str]()
    read = converted(table, _KEYS, faults)
    if "issuer" not in table:
        faults.append("issuer: required.")
    faults += _value_faults(read)
    provider = None
    if not faults:
        try:
            provider = provider_of(
                read["issuer"],
                name=name,
                label=read.get("label"),
                client_auth=read.get("client_auth", "basic"),
                dpop=read.get("dpop", False),
                tenants=read.get("tenants", ()),
                algorithms=read.get("algorithms", ()),
            )
        except (InvalidQuestion, ValueError) as error:
            faults += str(error).splitlines()
    problems += [f"issuers.{name}.{fault}" for fault in faults]
    if provider is None:
        return None
    return IssuerSettings(
        name=name,
        client=Client(provider=provider, client_id="", client_secret=""),
        claim=read.get("claim", SUBJECT_CLAIM),
        audiences=read.get("audiences", ()),
        scopes=read.get("scopes"),
        advertised_scopes=read.get("advertised_scopes", ()),
        introspects=read.get("introspect", False),
    )


def _value_faults(read: Mapping[str, Any]) -> Iterator[str]:
    for key, parse in (
        ("claim", claim_of),
        ("scopes", scopes_of),
        ("advertised_scopes", scopes_of),
    ):
        yield from faults_of_value(key, parse, " ".join(read.get(key, ())))
    if not read.get("claim", SUBJECT_CLAIM):
        yield "claim: name at least one claim, or leave it out."
    if unknown := [one for one in read.get("algorithms", ()) if one not in ALGORITHMS]:
        yield f"algorithms: {', '.join(unknown)}: only {', '.join(ALGORITHMS)} are accepted."
    if "algorithms" in read and not read["algorithms"]:
        yield "algorithms: name at least one, or leave it out."
    if read.get("client_auth", "basic") not in get_args(ClientAuth):
        yield f"client_auth: must be one of {', '.join(get_args(ClientAuth))}."
    if read.get("introspect") and read.get("tenants"):
        yield "introspect: leave it out, because a token that is not a JWT names no tenant."
    yield from label_faults(read, at_most=LABEL_AT_MOST)
    if not all(one.strip() for one in read.get("audiences", ())):
        yield "audiences: a name must not be empty."


# The issuers, the approvers, the teams and the providers of a file.
OfPeople: TypeAlias = tuple[
    tuple[IssuerSettings, ...], tuple[Approver, ...], tuple[Team, ...], Mapping[str, Provider]
]


def with_file(who: IdentitySettings, of_people: OfPeople, values: Values) -> IdentitySettings:
    """Return the settings with the issuers, the approvers and the teams of a file.

    Append a problem for each missing setting, and for each token exchange that names an issuer
    where nobody signs in.
    """
    tables, approvers, teams, providers = of_people
    further = list[IssuerSettings]()
    if tables and who.client is None:
        values.problems.append(
            f"ELICIT_ISSUER: required, because [issuers.{tables[0].name}] of elicit.toml adds an "
            "issuer to it."
        )
    for table in tables:
        id_row, secret_row = (row.of(table.name) for row in CLIENT_OF_ISSUER)
        id, secret, provider = values.text(id_row), values.text(secret_row), table.client.provider
        if not id:
            values.problems.append(
                f"{id_row.name}: required, because people sign in at [issuers.{table.name}]."
            )
        if provider.client_auth == "none" and secret:
            values.problems.append(f"{secret_row.name}: remove it: a public client has no secret.")
        elif provider.client_auth != "none" and not secret:
            values.problems.append(
                f"{secret_row.name}: required, because people sign in at [issuers.{table.name}]."
            )
        elif secret and (fault := key_fault(secret, client_auth=provider.client_auth)) is not None:
            values.problems.append(f"{secret_row.name}: {fault}")
        client = Client(provider=provider, client_id=id, client_secret=secret)
        scopes = who.scopes if table.scopes is None else table.scopes
        further.append(replace(table, client=client, scopes=scopes))
    who = replace(who, further_issuers=tuple(further))
    values.problems += _common_faults(who.issuers)
    known = who.claims_by_issuer
    values.problems += [
        f"providers.{name}.exchange.issuer: nobody signs in at {one.exchange.issuer!r}. Name "
        f"{' or '.join(known) or 'the issuer of ELICIT_ISSUER, which is not set'}."
        for name, one in providers.items()
        if one.exchange is not None and one.exchange.issuer not in known
    ]
    who = with_approvers(who, approvers, values.problems)
    return with_teams(who, teams, values.problems)


def _common_faults(issuers: Sequence[IssuerSettings]) -> Iterator[str]:
    """Yield the conflicts between issuers: an equal `iss` or label, or two that introspect."""
    seen = dict[str, str]()
    for one in issuers:
        place = f"[issuers.{one.name}]" if one.name else "ELICIT_ISSUER"
        for name in one.client.provider.issuers:
            if name in seen:
                yield f"{place}: {name} is already the issuer of {seen[name]}."
            seen[name] = place
    if len(asking := [one for one in issuers if one.introspects]) > 1:
        names = " and ".join(
            f"[issuers.{one.name}]" if one.name else "ELICIT_INTROSPECT" for one in asking
        )
        yield (
            f"{names}: only one issuer can check tokens that are not JWTs, because such a token "
            "does not say who made it, and must not be sent to another issuer. Let the others make "
            "JWT access tokens."
        )
    labels = [one.client.provider.label for one in issuers]
    for one in issuers:
        if one.name and labels.count(one.client.provider.label) > 1:
            yield (
                f"[issuers.{one.name}]: people cannot tell it from another issuer of this server: "
                "set label."
            )
