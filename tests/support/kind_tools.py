"""Tools that ask for accounts, payments and secrets."""

from collections.abc import Mapping
from typing import Any

import mcp_types as types

from flows import Money, elicit
from flows.providers import github

PRICE = Money("9.00", "EUR")
WAYS: Mapping[str, Any] = {"url": "all", "form": types.ElicitationCapability(), "nothing": None}


def bought(**more: Any) -> Any:
    return elicit.payment(PRICE, "Tea", **more)


def connected(**more: Any) -> Any:
    return elicit.oauth(github, scopes=["repo"], **more)


def asked_for(kind: str) -> Any:
    match kind:
        case "oauth":
            return connected()
        case "payment":
            return bought()
        case _:
            return elicit.secret("Your door", name="door")
