"""`elicit webhooks`: list, show and replay the webhooks that providers sent."""

import argparse
from datetime import UTC, datetime

from msgspec import Struct

from flows.errors import ElicitError, NotConfigured, StoreUnavailable
from webapp.cli.arguments import add_id, commands_of
from webapp.cli.operator import does, lists, shows
from webapp.cli.table import Table, the_one
from webapp.command import CommandRefused
from webapp.records.ids import tail_of
from webapp.records.values import StoredWebhook, TurnedAway
from webapp.service import Service

COLUMNS = ("id", "provider", "event", "status", "why", "times", "received_at")


class WebhookRow(Struct, frozen=True, kw_only=True):
    """A delivery, or the number of deliveries rejected on one day for one reason, without an id.

    `status` is the result of the delivery, or `turned away`.
    """

    id: str | None
    provider: str
    event: str | None
    status: str
    why: str | None
    times: int
    received_at: datetime


class Webhook(WebhookRow, frozen=True, kw_only=True):
    """The details of a delivery. `is_of_ours` is True if it is about one of our payments."""

    event_id: str
    is_of_ours: bool
    is_whole: bool
    erased_at: datetime
    replayed_at: datetime | None
    body: str


def declare(parser: argparse.ArgumentParser) -> None:
    commands = commands_of(parser)
    words = "list the webhooks of the last 30 days, and how many were rejected"
    lists(commands.add_parser("list", help=words), list_hooks, of=WebhookRow)
    showing = commands.add_parser("show", help="show one webhook, with its original body")
    shows(showing, show_hook, of=Webhook)
    words = "process a webhook again; changes that it already made are not repeated"
    replaying = commands.add_parser("replay", help=words)
    does(replaying, replay_hook)
    for command in (showing, replaying):
        add_id(command, shown_by="webhooks")


async def list_hooks(service: Service) -> Table[WebhookRow]:
    """List the webhooks of the last 30 days, the latest first, then the rejected ones."""
    hooks, others = await service.webhooks.log.webhooks(), await service.webhooks.log.unverified()
    return Table(
        rows=[*map(_heard, hooks), *map(_turned_away, others)],
        columns=COLUMNS,
        nothing="No webhook arrived in the last 30 days.",
    )


async def show_hook(service: Service, id: str) -> Webhook:
    """Return a delivery with its original body. Raises CommandRefused."""
    hook = await _hook(service, id)
    row = _heard(hook)
    return Webhook(
        **{name: getattr(row, name) for name in row.__struct_fields__},
        event_id=hook.event,
        is_of_ours=bool(hook.elicitation_id),
        is_whole=hook.is_whole,
        erased_at=hook.erase_at,
        replayed_at=hook.replayed_at,
        body=hook.body,
    )


async def replay_hook(service: Service, id: str) -> list[str]:
    """Process the delivery as if it arrived now. Raises CommandRefused."""
    hook = await _hook(service, id)
    try:
        replayed = await service.webhooks.replay(hook)
    except NotConfigured as error:
        raise CommandRefused(
            f"{hook.seller} is not set up here, so this webhook cannot be applied again. Run the "
            "command with the settings of the server that received it; only a sandbox's own server "
            "can apply its webhooks."
        ) from error
    except StoreUnavailable:
        raise
    except ElicitError as error:
        raise CommandRefused(str(error)) from error
    why = "" if replayed.why is None else f" ({replayed.why})"
    return [f"{replayed.seller}  {replayed.type or 'event'}  {replayed.status}{why}"]


async def _hook(service: Service, id: str) -> StoredWebhook:
    there = {tail_of(hook): hook for hook in await service.webhooks.log.webhooks()}
    found: StoredWebhook = the_one(id, there, what="webhook", shown_by="webhooks list")
    return found


def _heard(hook: StoredWebhook) -> WebhookRow:
    return WebhookRow(
        id=tail_of(hook),
        provider=hook.seller,
        event=hook.type or None,
        status=hook.status,
        why=hook.why,
        times=1,
        received_at=hook.received_at,
    )


def _turned_away(row: TurnedAway) -> WebhookRow:
    what = row.reason.removeprefix("other_")
    if row.reason == "unknown":
        why = "not about a payment of this server"
    elif what != row.reason:
        why = f"its {what} differs from the request"
    else:
        why = f"not verified: {row.reason}"
    return WebhookRow(
        id=None,
        provider=row.seller,
        event=None,
        status="turned away",
        why=why,
        times=row.count,
        received_at=row.last_at or datetime.fromisoformat(row.day).replace(tzinfo=UTC),
    )
