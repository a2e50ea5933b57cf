"""A mail server and a web hook on this machine, which receive notifications."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email import policy
from email.message import EmailMessage
from email.parser import BytesParser
from typing import Any

from aiosmtpd.smtp import SMTP, Envelope, Session
from msgspec.structs import replace

from flows.elicitation.states import Elicitation
from tests.support.clock import Clock
from tests.support.mcp_server import PATIENCE_SECONDS
from tests.support.service_env import plain_settings, question_in_store
from tests.support.serving import serving_at
from webapp.http.exchange import ASGIApp, Receive, Scope, Send
from webapp.notifications.delivery import Deliver, Message, NotifyTable
from webapp.records.ids import Notification
from webapp.service import Service, ServiceOptions, open_service
from webapp.settings.brand import Brand
from webapp.stores import Store
from webapp.sweeper import fall_due
from webapp.telemetry.work import NONE, Telemetry


@dataclass
class MailServer:
    """A mail server that stores what it receives."""

    port: int = 0
    received: list[EmailMessage] = field(default_factory=list)
    recipients: list[str] = field(default_factory=list)

    def address(self, to: str) -> str:
        """Return the Apprise address that sends a mail to `to`."""
        return f"mailto://127.0.0.1:{self.port}/{to}?from=elicit@example.com"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802 - the library's name
        assert isinstance(envelope.content, bytes)
        mail = BytesParser(policy=policy.default).parsebytes(envelope.content)
        assert isinstance(mail, EmailMessage)
        self.received.append(mail)
        self.recipients += envelope.rcpt_tos
        return "250 OK"

    def texts(self) -> list[str]:
        """Return the subject and the content of each mail, as a person reads them."""
        return [f"{mail['subject']}\n{content_of(mail)}" for mail in self.received]


def content_of(mail: EmailMessage) -> str:
    part = mail.get_body(("plain", "html"))
    assert part is not None
    text: str = part.get_content()
    return text


@asynccontextmanager
async def mail_server() -> AsyncIterator[MailServer]:
    # aiosmtpd's log contains the addresses of its mails.
    logging.getLogger("mail.log").setLevel(logging.ERROR)
    loop, found = asyncio.get_running_loop(), MailServer()
    server = await loop.create_server(lambda: SMTP(found, loop=loop), "127.0.0.1", 0)
    found.port = server.sockets[0].getsockname()[1]
    try:
        yield found
    finally:
        server.close()
        await server.wait_closed()


@dataclass
class Hook:
    """A receiver of web hooks. It answers with the next of `statuses`, or 200.

    If `is_silent`, it does not answer before the other side disconnects.
    """

    url: str = ""
    is_silent: bool = False
    statuses: list[int] = field(default_factory=list)
    received: list[dict[str, Any]] = field(default_factory=list)

    @property
    def address(self) -> str:
        """The Apprise address that sends messages to this receiver, with a password."""
        return self.url.replace("http://", "json://robot:hook-password@")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            event = await receive()
            body, more = body + event.get("body", b""), event.get("more_body", False)
        while self.is_silent and (await receive())["type"] != "http.disconnect":
            pass
        status = self.statuses.pop(0) if self.statuses else 200
        self.received.append(json.loads(body))
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    def texts(self) -> list[str]:
        return [f"{one['title']}\n{one['message']}" for one in self.received]


@asynccontextmanager
async def web_hook() -> AsyncIterator[Hook]:
    hook = Hook()

    def make(url: str) -> ASGIApp:
        hook.url = f"{url}/hook"
        return hook

    async with serving_at(make):
        yield hook


async def rows_of(service: Service) -> list[Notification]:
    return await service.elicitations.all(Notification)


async def messages_are_noted(service: Service, number: int) -> None:
    """Wait until this many messages are recorded for each address before escalation."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            rows = [row for row in await rows_of(service) if not row.is_escalation]
            if all(row.messages >= number for row in rows):
                return
            await asyncio.sleep(0)


@dataclass
class Deliveries:
    """A delivery that stores messages by address. `faults` are the next results of an address."""

    sent: list[tuple[str, Message]] = field(default_factory=list)
    faults: dict[str, list[str]] = field(default_factory=dict)

    async def __call__(self, address: str, message: Message) -> str | None:
        if faults := self.faults.get(address):
            return faults.pop(0)
        self.sent.append((address, message))
        return None

    def titles(self, address: str) -> list[str]:
        return [message.title for to, message in self.sent if to == address]


@asynccontextmanager
async def notifying(
    store: Store,
    clock: Clock,
    sender: Deliver,
    *tables: NotifyTable,
    telemetry: Telemetry = NONE,
    brand: Brand | None = None,
) -> AsyncIterator[Service]:
    """Run one process, which sends notifications only in `round_of`."""
    settings = plain_settings(notify=tables, brand=brand or Brand())
    async with open_service(
        settings, ServiceOptions(clock=clock, deliver=sender, telemetry=telemetry), store=store
    ) as service:
        yield service


async def asked(
    service: Service,
    *,
    approver: str | None = "finance",
    message: str = "Refund 900 EUR to Bob?",
    terms: Mapping[str, Any] | None = None,
    user: str | None = None,
    **about: Any,
) -> Elicitation:
    fresh = question_in_store(service, kind=about.pop("kind", "decision"), **about)
    if user is not None:
        owner = service.elicitations.owners.tag_of_user(user, application="")
        fresh = replace(fresh, owner=owner, id=service.elicitations.new_id(owner))
    all_terms = {**(terms or {}), **({} if approver is None else {"approver": approver})}
    fresh = replace(fresh, request=replace(fresh.request, message=message, terms=all_terms))
    await service.elicitations.write(fresh)
    return fresh


async def round_of(service: Service) -> None:
    await fall_due(service)
    await service.notifier.send_all()


async def pass_time(service: Service, clock: Clock, **amount: float) -> None:
    clock.tick(**amount)
    await round_of(service)
