"""`[teams.NAME]` in `elicit.toml`: the people who share accounts, and at which providers.

Risks: a claim that people can change themselves lets anybody use a team's accounts. Such claims are
refused, as for approvers.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from flows.oauth.access_token import Team
from webapp.identity.users import is_user_id
from webapp.settings.identity import OF_PEOPLES_OWN, IdentitySettings, issuer_faults
from webapp.settings.toml_tables import LISTS, TEXT, TEXTS, converted, meant, tables_in, unknown_key

VALUES_AT_MOST: Final = 20  # of all teams together: a cookie contains them
LABEL_AT_MOST: Final = 40
_KEYS: Final = {
    "label": TEXT,
    "providers": TEXTS,
    "claims": LISTS,
    "issuers": TEXTS,
    "users": TEXTS,
}


def read_teams(
    tables: Mapping[str, Any], problems: list[str], *, providers: Collection[str]
) -> tuple[Team, ...]:
    """Return the teams of the tables, and add faults to `problems`.

    `providers` are the names of all known providers.
    """
    found = list[Team]()
    for name, table in tables_in(tables, kind="teams", built_in=(), problems=problems):
        faults = [unknown_key(key, sorted(_KEYS)) for key in table if key not in _KEYS]
        known = {key: value for key, value in table.items() if key in _KEYS}
        read = converted(known, _KEYS, faults)
        faults += _faults_of(read)
        faults += [
            f"providers: {one} is neither built in nor a table [providers.{one}]."
            + meant(one, providers)
            for one in read.get("providers", ())
            if one not in providers
        ]
        problems += [f"teams.{name}.{fault}" for fault in faults]
        if not faults:
            found.append(
                Team(
                    name=name,
                    label=read.get("label", name.replace("_", " ").title()),
                    providers=frozenset(read["providers"]),
                    claims=read.get("claims", {}),
                    issuers=frozenset(read.get("issuers", ())),
                    users=frozenset(read.get("users", ())),
                )
            )
    if sum(len(one.pairs) for one in found) > VALUES_AT_MOST:
        problems.append(
            f"teams: the claims list more than {VALUES_AT_MOST} values in all; put these people "
            "into one group at the issuer."
        )
    return tuple(found)


def _faults_of(read: Mapping[str, Any]) -> Iterator[str]:
    if not read.get("providers"):
        yield "providers: required: the providers whose accounts the team shares."
    if not any(read.get("claims", {}).values()) and not read.get("users"):
        yield "claims: required, unless users names the application's users."
    for claim in read.get("claims", {}):
        if claim.lower() in OF_PEOPLES_OWN:
            yield (
                f"claims.{claim}: people can change this claim or share it with others; use a "
                "group or a role that the issuer assigns."
            )
    for user in read.get("users", ()):
        if not is_user_id(user):
            yield f"users: {user!r} is not a valid user id."
    label = read.get("label", "x")
    if not label.strip() or not label.isprintable() or len(label) > LABEL_AT_MOST:
        yield f"label: must have 1 to {LABEL_AT_MOST} printable characters."


def with_teams(
    who: IdentitySettings, teams: tuple[Team, ...], problems: list[str]
) -> IdentitySettings:
    """Return the settings with the teams of a file, and add missing settings to `problems`."""
    for one in teams:
        if one.claims and who.client is None:
            problems.append(
                f"ELICIT_ISSUER: required, because teams.{one.name} names a claim of people who "
                "sign in there. On your own machine without an issuer, every account is yours."
            )
        elif one.claims:
            problems += [f"teams.{one.name}.{fault}" for fault in issuer_faults(who, one.issuers)]
    named = [replace(one, issuers=one.issuers or who.first_names) for one in teams]
    return replace(who, teams=tuple(named))
