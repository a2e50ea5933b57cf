"""`[approvers.NAME]` in `elicit.toml`: the people who decide under a name.

Risks: a claim that people can change themselves makes anybody an approver. Such claims are refused,
including the e-mail address.
"""

from collections.abc import Mapping
from typing import Any, Final

from webapp.identity.approvers import Approver
from webapp.identity.users import is_user_id
from webapp.settings.identity import OF_PEOPLES_OWN
from webapp.settings.toml_tables import FLAG, LISTS, TEXTS, converted, tables_in, unknown_key

CLAIM_VALUES_AT_MOST: Final = 20  # of all approvers together: a cookie contains them
_KEYS: Final = {"subjects": TEXTS, "claims": LISTS, "users": TEXTS, "local": FLAG}


def read_approvers(tables: Mapping[str, Any], problems: list[str]) -> tuple[Approver, ...]:
    """Return the approvers of the tables, and add faults to `problems`."""
    found = [
        _approver(name, table, problems)
        for name, table in tables_in(tables, kind="approvers", built_in=(), problems=problems)
    ]
    approvers = tuple(one for one in found if one is not None)
    if sum(len(one.pairs) for one in approvers) > CLAIM_VALUES_AT_MOST:
        problems.append(
            f"approvers: the claims list more than {CLAIM_VALUES_AT_MOST} values in all; put these "
            "people into one group at the issuer."
        )
    return approvers


def _approver(name: str, table: dict[str, Any], problems: list[str]) -> Approver | None:
    faults = [unknown_key(key, sorted(_KEYS)) for key in table if key not in _KEYS]
    known = {key: value for key, value in table.items() if key in _KEYS}
    read = converted(known, _KEYS, faults)
    faults += [
        f"claims.{claim}: people can change this claim or share it with others; use a group or a "
        "role that the issuer assigns."
        for claim in read.get("claims", {})
        if claim.lower() in OF_PEOPLES_OWN
    ]
    faults += [
        f"users: {user!r} is not a valid user id."
        for user in read.get("users", ())
        if not is_user_id(user)
    ]
    problems += [f"approvers.{name}.{fault}" for fault in faults]
    if not faults and not any(read.values()):
        problems.append(f"approvers.{name}: names nobody; add subjects, claims, users or local.")
    if faults or not any(read.values()):
        return None
    return Approver(
        name=name,
        subjects=frozenset(read.get("subjects", ())),
        claims=read.get("claims"),
        users=frozenset(read.get("users", ())),
        is_local=bool(read.get("local")),
    )
