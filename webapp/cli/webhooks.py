"""`elicit webhooks`: what providers told us, listed, shown and taken once more.

What could go wrong: a terminal that obeys what a provider wrote. So signs that are no letters are
shown as such.
"""

import argparse

from flows.errors import ElicitError, StoreUnavailable
from webapp.cli.arguments import add_id, commands_of
from webapp.cli.operator import does
from webapp.command import CommandRefused
from webapp.printing import printed
from webapp.records.ids import tail_of
from webapp.records.rows import StoredWebhook, TurnedAway
from webapp.service import Service


def declare(parser: argparse.ArgumentParser) -> None:
    commands = commands_of(parser)
    words = "list what came in 30 days, and how much was turned away"
    does(commands.add_parser("list", help=words), list_hooks)
    for name, words, work in (
        ("show", "show one, with its body as it came", show_hook),
        ("replay", "take one as if it came now; what it did, it does not do again", replay_hook),
    ):
        command = commands.add_parser(name, help=words)
        add_id(command, shown_by="webhooks")
        does(command, work)


async def list_hooks(service: Service) -> list[str]:
    """What providers told in the last 30 days, the latest first, and what was turned away."""
    hooks = await service.inbox.hooks()
    lines = [_heard(hook) for hook in hooks] or ["Nothing verified has come in 30 days."]
    return [*lines, *map(_turned_away, await service.inbox.unverified())]


async def show_hook(service: Service, id: str) -> list[str]:
    """One delivery, with its body as it came. Raises Refused."""
    hook = await _hook(service, id)
    lines = [
        _heard(hook),
        f"  event     {hook.event}",
        f"  about     {'nothing of ours' if not hook.elicitation_id else 'a payment of ours'}",
        f"  kept to   {hook.erase_at:%Y-%m-%d}",
    ]
    if hook.replayed_at is not None:
        lines.append(f"  replayed  {hook.replayed_at:%Y-%m-%d %H:%M:%S}")
    return [*lines, "", *map(printed, hook.body.splitlines()), *([] if hook.is_whole else ["..."])]


async def replay_hook(service: Service, id: str) -> list[str]:
    """Take it as if it came now. Raises Refused."""
    hook = await _hook(service, id)
    try:
        replayed = await service.hooks.replay(hook)
    except StoreUnavailable:
        raise
    except ElicitError as error:
        raise CommandRefused(str(error)) from error
    return [_heard(replayed)]


async def _hook(service: Service, id: str) -> StoredWebhook:
    found = await service.inbox.find(id)
    if found is None:
        raise CommandRefused(
            f"There is no delivery {printed(id)}: elicit webhooks list shows them."
        )
    return found


def _heard(hook: StoredWebhook) -> str:
    why = "" if hook.why is None else f" ({hook.why})"
    when = f"{hook.received_at:%Y-%m-%d %H:%M:%S}"
    return f"{tail_of(hook)}  {when}  {hook.seller}  {hook.type or 'event'}  {hook.status}{why}"


def _turned_away(row: TurnedAway) -> str:
    times = "once" if row.count == 1 else f"{row.count} times"
    what = row.reason.removeprefix("other_")
    if row.reason == "unknown":
        words = f"said something about a payment that is not ours, {times}"
    elif what != row.reason:
        words = f"told of a payment whose {what} is not what was asked for, {times}"
    else:
        words = f"could not be verified, {times}: {row.reason}"
    return f"{row.day}  {row.seller}  {words}"
