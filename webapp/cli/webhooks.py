"""`elicit webhooks`: list, show and replay the webhooks that providers sent."""

import argparse

from webapp.cli.arguments import add_id, commands_of
from webapp.cli.operator import does, lists, shows
from webapp.cli.table import Table, find_by_prefix
from webapp.operations.acts import replay
from webapp.operations.rows import Webhook, WebhookRow, rejected_row, webhook_row
from webapp.records.ids import tail_of
from webapp.records.values import StoredWebhook
from webapp.service import Service

COLUMNS = ("id", "provider", "event", "status", "why", "times", "received_at")


def declare(parser: argparse.ArgumentParser) -> None:
    add_command = commands_of(parser)
    words = "list the stored webhooks, and how many were rejected"
    lists(add_command("list", help=words), list_hooks, of=WebhookRow)
    showing = add_command("show", help="show one webhook, with its original body")
    shows(showing, show_hook, of=Webhook)
    words = "process a webhook again; changes that it already made are not repeated"
    replaying = add_command("replay", help=words)
    does(replaying, replay_hook)
    for command in (showing, replaying):
        add_id(command, shown_by="webhooks")


async def list_hooks(service: Service) -> Table[WebhookRow]:
    """List the stored webhooks, the latest first, then the rejected ones."""
    hooks, others = await service.webhooks.log.webhooks(), await service.webhooks.log.unverified()
    return Table(
        rows=[*map(webhook_row, hooks), *map(rejected_row, others)],
        columns=COLUMNS,
        nothing="No webhook is stored.",
    )


async def show_hook(service: Service, id: str) -> Webhook:
    """Return a delivery with its original body. Raises CommandRefused."""
    hook = await _hook(service, id)
    row = webhook_row(hook)
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
    replayed = await replay(service, hook)
    why = "" if replayed.why is None else f" ({replayed.why})"
    return [f"{replayed.seller}  {replayed.type or 'event'}  {replayed.status}{why}"]


async def _hook(service: Service, id: str) -> StoredWebhook:
    there = {tail_of(hook): hook for hook in await service.webhooks.log.webhooks()}
    found: StoredWebhook = find_by_prefix(id, there, what="webhook", shown_by="webhooks list")
    return found
