"""`elicit pending`: what people are asked now and have not answered.

What could go wrong: a list that lets somebody answer, or read what was asked. It has neither a link
nor a word of any question, and owners and ids are cut short.
"""

import argparse

from flows.elicitation.states import Elicitation, Status
from webapp.cli.arguments import commands_of
from webapp.cli.operator import OWNER_CHARACTERS, WHAT_CHARACTERS, does
from webapp.printing import printed
from webapp.records.ids import tail_of
from webapp.service import Service


def declare(parser: argparse.ArgumentParser) -> None:
    words = "list what people are asked and have not answered, the latest first"
    does(commands_of(parser).add_parser("list", help=words), list_pending)


async def list_pending(service: Service) -> list[str]:
    """Of all owners, the latest first."""
    rows = service.elicitations
    found = {  # by id: one that is opened meanwhile is found twice
        one.id: one
        for status in (Status.PENDING, Status.OPENED)
        for one in await rows.all(Elicitation, status=status, skips_unreadable=True)
    }
    now = rows.clock()
    asked = [one for one in found.values() if now < one.expires_at]
    asked.sort(key=lambda one: one.created_at, reverse=True)
    return [line for one in asked for line in _told(one)] or ["Nobody is asked anything."]


def _told(asked: Elicitation) -> list[str]:
    since, until = (f"{moment:%Y-%m-%d %H:%M}" for moment in (asked.created_at, asked.expires_at))
    tool, server = (
        printed(name[:WHAT_CHARACTERS]) for name in (asked.asked.tool, asked.asked.server)
    )
    return [
        f"{tail_of(asked)}  {since}, until {until} UTC  {asked.kind}",
        f"  for {tool}, at {server}, by {asked.owner[:OWNER_CHARACTERS]}",
    ]
