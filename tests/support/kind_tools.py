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


def secret(**more: Any) -> Any:
    return elicit.secret("Your door", **more)


def asked_for(kind: str, **more: Any) -> Any:
    return {"oauth": connected, "payment": bought, "secret": secret}[kind](**more)
