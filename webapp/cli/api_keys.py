"""`elicit api-keys`: create, list and revoke the keys of programs that use the HTTP API."""

import argparse
from datetime import datetime, timedelta

from msgspec import Struct

from webapp.cli.arguments import add_id, commands_of
from webapp.cli.operator import does, lists
from webapp.cli.table import Table, find_by_prefix
from webapp.command import CommandRefused
from webapp.identity.api_keys import KeyScope
from webapp.records.ids import tail_of
from webapp.records.values import ApiKey
from webapp.service import Service
from webapp.settings.parsers import with_unit

LASTS_AT_MOST = timedelta(days=366)
COLUMNS = ("id", "program", "scopes", "owners", "state", "made_at", "expires_at", "used_at")


class ApiKeyRow(Struct, frozen=True, kw_only=True):
    """An API key without its text. `used_at` is accurate to a minute."""

    id: str
    program: str
    scopes: tuple[str, ...]
    owners: tuple[str, ...]
    state: str
    made_at: datetime
    expires_at: datetime
    used_at: datetime | None


def declare(parser: argparse.ArgumentParser) -> None:
    add_command = commands_of(parser)
    new = add_command("new", help="create a key, and print it once")
    new.add_argument(
        "program",
        metavar="PROGRAM",
        help="the name of the program that asks, as pages and lists show it; all keys of one "
        "program see the same questions",
    )
    new.add_argument(
        "--scopes",
        required=True,
        metavar="SCOPES",
        help=f"what the key allows, separated by commas: {', '.join(KeyScope)}",
    )
    new.add_argument(
        "--expires",
        required=True,
        metavar="TIME",
        type=_lasting,
        help=f"how long the key is valid, such as 90d; {LASTS_AT_MOST.days}d at most",
    )
    new.add_argument(
        "--owner",
        dest="owners",
        action="append",
        default=[],
        metavar="USER",
        help="a user of your application that the key is limited to; can be repeated",
    )
    does(new, new_api_key)
    words = "list the keys, newest first; the keys themselves are not stored"
    lists(add_command("list", help=words), list_api_keys, of=ApiKeyRow)
    revoke = add_command("revoke", help="revoke a key at once")
    add_id(revoke, shown_by="api-keys")
    does(revoke, revoke_api_key)


async def new_api_key(
    service: Service, *, program: str, scopes: str, expires: timedelta, owners: list[str]
) -> list[str]:
    """Create a key and return its text, which is not shown again. Raises CommandRefused."""
    now = service.clock()
    try:
        wanted = [KeyScope(word.strip()) for word in scopes.split(",")]
    except ValueError:
        raise CommandRefused(
            f"--scopes {scopes}: the scopes are {', '.join(KeyScope)}.", status=2
        ) from None
    try:
        text, _ = await service.identity.api_keys.new(
            program=program, scopes=wanted, owners=owners, expires_at=now + expires
        )
    except ValueError as error:
        raise CommandRefused(f"No key was created: {error}.", status=2) from error
    return [text]


async def list_api_keys(service: Service) -> Table[ApiKeyRow]:
    """List the API keys, the latest first."""
    now = service.clock()
    found = sorted(await service.identity.api_keys.all(), key=lambda key: key.made_at, reverse=True)
    return Table(
        rows=[_row(key, now) for key in found], columns=COLUMNS, nothing="There is no API key."
    )


async def revoke_api_key(service: Service, id: str) -> list[str]:
    """Revoke a key immediately. Raises CommandRefused."""
    there = {tail_of(key): key for key in await service.identity.api_keys.all()}
    meant = find_by_prefix(id, there, what="API key", shown_by="api-keys list")
    await service.identity.api_keys.revoke(meant.id)
    return [
        f"The key of {meant.program} is revoked: the server refuses it from the next request on."
    ]


def _row(key: ApiKey, now: datetime) -> ApiKeyRow:
    state = (
        key.status if key.status == "revoked" else "works" if now < key.expires_at else "expired"
    )
    return ApiKeyRow(
        id=tail_of(key),
        program=key.program,
        scopes=key.scopes,
        owners=key.owners,
        state=state,
        made_at=key.made_at,
        expires_at=key.expires_at,
        used_at=key.used_at,
    )


def _lasting(text: str) -> timedelta:
    found = with_unit(text)
    if found is None or found > LASTS_AT_MOST:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a valid duration for a key: write for example 90d or 12h; "
            f"{LASTS_AT_MOST.days}d at most"
        )
    return found
