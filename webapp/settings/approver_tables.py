"""`[approvers.NAME]` and `[teams.NAME]` in `elicit.toml`: who decides, and who shares accounts.

Risks: a claim that people can change themselves makes anybody an approver, or lets anybody use a
team's accounts. Such claims are refused, including the e-mail address. Another risk: a request
needs more approvals than its table lists people. Such a table is refused.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from flows.oauth.access_token import Team
from webapp.identity.approvers import Approver
from webapp.settings import parsers
from webapp.settings.identity import OF_PEOPLES_OWN, IdentitySettings, issuer_faults

CLAIM_VALUES_AT_MOST: Final = 20  # for all approvers together: a cookie contains the values
APPROVALS_AT_MOST: Final = 10
_APPROVER_KEYS: Final = {
    "issuers": parsers.TEXTS,
    "subjects": parsers.TEXTS,
    "claims": parsers.LISTS,
    "users": parsers.TEXTS,
    "local": parsers.FLAG,
    "needs": parsers.NUMBER,
    "comment": parsers.TEXT,
    "delegate": parsers.FLAG,
    "escalate_after": parsers.TEXT,
    "escalate_to": parsers.TEXT,
}
_escalate_after = parsers.duration(timedelta(days=7), "7 days", at_least=timedelta(minutes=1))
_PEOPLE_KEYS: Final = ("subjects", "claims", "users", "local")
_COMMENTS: Final = ("none", "optional", "required")


def read_approvers(tables: Mapping[str, Any], problems: list[str]) -> tuple[Approver, ...]:
    """Return the approvers of the tables, and add faults to `problems`."""
    found = [
        _approver(name, table, problems)
        for name, table in parsers.tables_in(
            tables, kind="approvers", built_in=(), problems=problems
        )
    ]
    approvers = tuple(one for one in found if one is not None)
    if len(approvers) == len(found):
        problems += _faults_of_escalation(approvers)
    if sum(len(one.pairs) for one in approvers) > CLAIM_VALUES_AT_MOST:
        problems.append(
            f"approvers: the claims list more than {CLAIM_VALUES_AT_MOST} values in all; put these "
            "people into one group at the issuer."
        )
    return approvers


def _approver(name: str, table: dict[str, Any], problems: list[str]) -> Approver | None:
    faults = list[str]()
    read = parsers.converted(table, _APPROVER_KEYS, faults)
    faults += [*_claim_faults(read), *parsers.user_faults(read)]
    faults += _faults_of_voting(name, read)
    problems += [f"approvers.{name}.{fault}" for fault in faults]
    names_somebody = any(read.get(key) for key in _PEOPLE_KEYS)
    if not faults and not names_somebody:
        problems.append(f"approvers.{name}: names nobody; add subjects, claims, users or local.")
    if faults or not names_somebody:
        return None
    after = read.get("escalate_after")
    return Approver(
        name=name,
        subjects=frozenset(read.get("subjects", ())),
        claims=read.get("claims"),
        issuers=frozenset(read.get("issuers", ())),
        users=frozenset(read.get("users", ())),
        is_local=bool(read.get("local")),
        needs=read.get("needs", 1),
        comment=read.get("comment", "none"),
        lets_delegate=bool(read.get("delegate")),
        escalate_after=None if after is None else _escalate_after(after),
        escalate_to=read.get("escalate_to"),
    )


def _faults_of_voting(name: str, read: Mapping[str, Any]) -> Iterator[str]:
    if not 1 <= read.get("needs", 1) <= APPROVALS_AT_MOST:
        yield f"needs: must be a whole number from 1 to {APPROVALS_AT_MOST}."
    if read.get("comment", "none") not in _COMMENTS:
        yield f"comment: must be one of {', '.join(_COMMENTS)}."
    for key, other in (("escalate_after", "escalate_to"), ("escalate_to", "escalate_after")):
        if key in read and other not in read:
            yield f"{key}: it has no effect without {other}. Add {other}."
    if read.get("escalate_to") == name:
        yield "escalate_to: names this table itself. Name another table [approvers.NAME]."
    if "escalate_after" in read:
        yield from parsers.faults_of_value(
            "escalate_after", _escalate_after, read["escalate_after"]
        )


def _claim_faults(read: Mapping[str, Any]) -> Iterator[str]:
    for claim in read.get("claims", {}):
        if claim.lower() in OF_PEOPLES_OWN:
            yield (
                f"claims.{claim}: people can change this claim or share it with others; use a "
                "group or a role that the issuer assigns."
            )


def _faults_of_escalation(approvers: Sequence[Approver]) -> Iterator[str]:
    """Yield the faults that concern a table and the table that its requests are escalated to."""
    by_name = {one.name: one for one in approvers}
    for one in approvers:
        other = by_name.get(one.escalate_to or one.name)
        if other is None:
            yield (
                f"approvers.{one.name}.escalate_to: there is no table "
                f"[approvers.{one.escalate_to}]." + parsers.meant(one.escalate_to or "", by_name)
            )
            continue
        people = [
            {*each.subjects, *each.users, *([True] if each.is_local else [])}
            for each in (one, other)
        ]
        if not (one.claims or other.claims) and len(people[0] | people[1]) < one.needs:
            yield (
                f"approvers.{one.name}.needs: it is {one.needs}, and the table lists fewer people. "
                "Add people, or set a lower number."
            )


# `[teams.NAME]`: the people who share accounts, and at which providers.

VALUES_AT_MOST: Final = 20  # for all teams together: a cookie contains the values
LABEL_AT_MOST: Final = 40
_KEYS: Final = {
    "label": parsers.TEXT,
    "providers": parsers.TEXTS,
    "claims": parsers.LISTS,
    "issuers": parsers.TEXTS,
    "users": parsers.TEXTS,
}


def read_teams(
    tables: Mapping[str, Any], problems: list[str], *, providers: Collection[str]
) -> tuple[Team, ...]:
    """Return the teams of the tables, and add faults to `problems`.

    `providers` are the names of all known providers.
    """
    found = list[Team]()
    for name, table in parsers.tables_in(tables, kind="teams", built_in=(), problems=problems):
        faults = list[str]()
        read = parsers.converted(table, _KEYS, faults)
        faults += _faults_of(read)
        faults += [
            f"providers: {one} is neither built in nor a table [providers.{one}]."
            + parsers.meant(one, providers)
            for one in read.get("providers", ())
            if one not in providers
        ]
        problems += [f"teams.{name}.{fault}" for fault in faults]
        if not faults:
            found.append(
                Team(
                    name=name,
                    label=read.get("label", parsers.label_of(name)),
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
    yield from (*_claim_faults(read), *parsers.user_faults(read))
    yield from parsers.label_faults(read, at_most=LABEL_AT_MOST)


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
