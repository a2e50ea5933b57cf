"""An operator's browser, and stores with many records."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import httpx
from msgspec.structs import replace

from flows.crypto.tokens import Tokens
from flows.elicitation.states import Asked, Elicitation, Status
from flows.oauth.connection import Connection
from flows.payments.receipt import Payment, ReceiptStatus
from flows.payments.session import UnresolvedPayment
from tests.support.mcp_server import Page, Person
from webapp.identity.operators import link_address
from webapp.records.owners import SERVICE
from webapp.records.values import (
    ClientReaction,
    ClientRecord,
    OutgoingEvent,
    StoredWebhook,
    TurnedAway,
    Value,
)
from webapp.service import Service
from webapp.stores import Record, Store
from webapp.telemetry.work import current_work

HOSTILE = '<script>alert(1)</script>\u202e=HYPERLINK("https://evil.example")\r\n\x1b[31m'


def one_time_link(service: Service) -> str:
    """Return the address that `elicit operator` prints."""
    tokens = Tokens(service.elicitations.owners.ring, origin=service.public_url)
    return link_address(tokens, url=service.public_url, now=service.clock())


async def entered(person: Person, service: Service) -> Person:
    """Open the operator's pages in the person's browser, with a one-time link."""
    link = one_time_link(service)
    page = await person.visit(link)
    assert page.csrf is not None, page.text
    answer = await person.browser.post(link, data={"csrf": page.csrf})
    assert answer.status_code == 303, answer.text
    return person


async def act(person: Person, url: str, **fields: str) -> httpx.Response:
    """Confirm the change whose page is at `url`."""
    return await person.browser.post(url, data={"csrf": await csrf_at(person, url), **fields})


async def csrf_at(person: Person, url: str) -> str:
    """Return the CSRF token of the last form of a page. The first form is the search."""
    page = await person.visit(url)
    *_, found = re.findall(r'name="csrf" value="([^"]+)"', page.text)
    return str(found)


async def at(person: Person, service: Service, path: str) -> Page:
    return await person.visit(f"{service.public_url}/operator{path}")


@dataclass(slots=True)
class CountedStore:
    """A store that counts the reads for pages, and not those of the sweeper and other loops.

    `opened` is the number of records that were decrypted for pages.
    """

    store: Store
    high_water: Any
    reads: int = 0
    opened: int = 0

    def __getattr__(self, name: str) -> Any:
        if _is_for_page() and name in ("read", "find", "list", "scan"):
            self.reads += 1
        return getattr(self.store, name)


@dataclass(slots=True)
class _CountedOpenings:
    counted: CountedStore

    def remember(self, *records: Record, are_new: bool = False) -> None:
        if _is_for_page() and not are_new:
            self.counted.opened += len(records)
        self.counted.high_water.remember(*records, are_new=are_new)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.counted.high_water, name)


def _is_for_page() -> bool:
    work: Any = current_work()
    return work is not None and str(work.name).startswith("GET ")


def counting(service: Service) -> CountedStore:
    """Count every read of the service's store from now on."""
    counted = CountedStore(service.elicitations.store, service.elicitations.rows.high_water)
    elicitations: Any = service.elicitations
    elicitations.store = counted
    elicitations.owners.store = counted
    elicitations.rows._store = counted
    elicitations.rows.high_water = _CountedOpenings(counted)
    sessions: Any = service.identity.sessions
    sessions._store = counted
    return counted


def question(service: Service, owner: str, *, number: int = 0, **changes: Any) -> Elicitation:
    now = service.clock() - timedelta(minutes=number)
    rows = service.elicitations.rows
    asked = Elicitation(
        id=rows.new_id(owner, now=now),
        owner=owner,
        kind="form",
        request=Asked(
            message="Which table?",
            server="my tools",
            tool="book",
            client="Claude",
            digest="d",
        ),
        dedupe_key=f"join {number}",
        created_at=now,
        expires_at=now + timedelta(minutes=5),
        status=Status.ACCEPTED,
        holds_key=False,
        settled_at=now + timedelta(seconds=40),
        content={"answer": "THE TYPED ANSWER"},
    )
    return replace(asked, **changes)


def people(service: Service, count: int) -> Sequence[str]:
    owners = service.elicitations.owners
    return [owners.tag(issuer="https://i.example", subject=f"p{n}") for n in range(count)]


async def filled(service: Service, count: int, *, owners: int = 50, text: str = "") -> None:
    """Store `count` records of each kind, in a few writes for each owner."""
    rows = service.elicitations.rows
    for index, owner in enumerate(people(service, owners)):
        values = list[Value]()
        for number in range(index, count, owners):
            values += _records(service, owner, number, text)
        for first in range(0, len(values), 400):
            await rows.write(*values[first : first + 400])
    counts = [
        TurnedAway(
            id=f"{SERVICE}2026-01-01:{number}:bad",
            owner=SERVICE,
            day="2026-01-01",
            seller=text or "stripe",
            reason="signature",
            erase_at=service.clock() + timedelta(days=3),
            count=number,
        )
        for number in range(min(count, 300))
    ]
    if counts:
        await rows.write(*counts)


def _records(service: Service, owner: str, number: int, text: str) -> Sequence[Value]:
    now = service.clock() - timedelta(minutes=number)
    asked = question(service, owner, number=number)
    if text:
        request = replace(asked.request, tool=text, server=text, client=text)
        asked = replace(asked, request=request, why=text)
    kinds = ("form", "payment", "oauth", "confirm")
    statuses = (Status.ACCEPTED, Status.EXPIRED, Status.PENDING, Status.DECLINED)
    asked = replace(asked, kind=kinds[number % 4], status=statuses[number % 4])
    paid = Payment(
        id=rows_id(service, asked.id, number),
        owner=owner,
        dedupe_key=asked.dedupe_key,
        elicitation_id=asked.id,
        server="my tools",
        seller=text or "stripe",
        session=f"cs_test_{number}",
        payment_intent=f"pi_test_{number}",
        amount=900,
        currency="EUR",
        what=text or "Premium report",
        tool=text or "report",
        is_live=False,
        paid_at=now,
        status=(ReceiptStatus.OPEN, ReceiptStatus.SPENT)[number % 2],
    )
    return [asked, paid, *_others(service, number, text, asked, paid)]


def rows_id(service: Service, reference: str, number: int) -> str:
    ids = service.elicitations.rows.ids
    return ids.payment(reference, provider="stripe", session=f"cs_test_{number}")


def _others(
    service: Service, number: int, text: str, asked: Elicitation, paid: Payment
) -> Sequence[Value]:
    owner = asked.owner
    now, rows = service.clock() - timedelta(minutes=number), service.elicitations.rows
    later = now + timedelta(days=3)
    unresolved = UnresolvedPayment(
        id=rows.ids.unresolved(
            asked.id, owner=owner, provider="stripe", session=f"cs_lost_{number}"
        ),
        owner=owner,
        elicitation_id=asked.id,
        seller=text or "stripe",
        session=f"cs_lost_{number}",
        amount=900,
        currency="EUR",
        what=text or "Premium report",
        tool=text or "report",
        is_live=False,
        found_at=now,
        until=later,
    )
    hook = StoredWebhook(
        id=rows.ids.webhook(asked.id, owner=owner, provider="stripe", event=f"evt_{number}"),
        owner=owner,
        seller=text or "stripe",
        elicitation_id=asked.id,
        session=paid.session,
        body='{"id": "evt_1", "client_secret": "pi_1_secret_abcdefgh"}',
        received_at=now,
        erase_at=later,
        event=f"evt_{number}",
        type=text or "checkout.session.completed",
        why=text or None,
    )
    account = Connection(
        id=rows.new_id(owner, now=now),
        owner=owner,
        lookup_key=f"key {number}",
        server="my tools",
        provider=text or "github",
        person_id=f"{number}",
        label=text or f"octocat{number}",
        connected_at=now,
        scopes=("repo",),
        tools=(text or "list",),
        access_token="THE ACCESS TOKEN",
        refresh_token="THE REFRESH TOKEN",
        lapsed_at=now if number % 3 == 1 else None,
        is_active=False,
        came_by=asked.id,
    )
    client = ClientRecord(
        id=rows.ids.client(owner, name=f"c{number}", release="1"),
        owner=owner,
        name=text or f"Claude {number}",
        release=text or "1.0",
        erase_at=later,
        forms=ClientReaction(what="answered", at=now, until=later),
    )
    event = OutgoingEvent(
        id=f"{owner}{number:024d}",
        owner=owner,
        address=text or "billing",
        webhook_id=f"evt_{number:016d}{owner}",
        type=text or "question.accepted",
        facts={"id": asked.id, "kind": "form"},
        happened_at=now,
        erase_at=later,
        next_at=later,
        tries=2,
        why=text or "it answered 500",
    )
    return [unresolved, hook, account, client, event]
