"""The views of an elicitation: before the person continues, in progress, and at its end."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from babel import Locale

from flows.elicitation.states import (
    EXCHANGE_AT_MOST,
    INTERRUPTED,
    MONEY_RETURNED,
    NOT_ARRIVED,
    Elicitation,
    Status,
)
from flows.elicitation.traits import PageName, traits_of
from flows.oauth.connection import Connection
from flows.oauth.provider import Provider
from flows.origin import is_loopback
from flows.payments.session import checkout_of, is_paid_otherwise, terms_of
from webapp.oauth.clients import is_at_sandbox
from webapp.pages import views
from webapp.pages.builder_forms import (
    decided_view,
    done_view,
    question_of,
    server_of,
    start_view,
    view_of,
    waiting_view,
)
from webapp.pages.form import PageForm, form_of
from webapp.pages.updates import is_paid_later, updates_of
from webapp.pages.views_forms import StartDecision
from webapp.prices import price_in
from webapp.records.ids import OWNER_TAG_CHARACTERS
from webapp.service import Service

ENDINGS: dict[Status, views.Ending] = {
    Status.DECLINED: "declined",
    Status.DENIED: "denied",
    Status.CANCELLED: "cancelled",
    Status.EXPIRED: "expired",
    Status.FAILED: "failed",
    Status.SUPERSEDED: "superseded",
}
# reasons for which the page has its own text
_NO_PROBLEM = (INTERRUPTED, NOT_ARRIVED, MONEY_RETURNED)


class PageBuilder:
    """The view of one elicitation for the page at `here`, for a person with this locale."""

    def __init__(
        self,
        service: Service,
        elicitation: Elicitation,
        *,
        here: str,
        csrf: str,
        locale: Locale | None = None,
    ) -> None:
        self._service = service
        self._elicitation = elicitation
        self._asked = elicitation.request
        self._page: PageName = traits_of(elicitation.kind).page
        self._server = server_of(elicitation)
        self._here = here
        self._csrf = csrf
        self._locale = locale
        self._now = service.clock()

    async def view(self, *, is_bound: bool, offers: bool = True) -> views.View:
        """Return the view of the elicitation's current state, which updates itself.

        `is_bound`: this browser pressed Continue. `offers`: also offer accounts that are connected.
        """
        view = await self._view(is_bound=is_bound, offers=offers)
        return await self.with_updates(view)

    async def with_updates(self, view: views.View) -> views.View:
        # These views already update themselves.
        if isinstance(view, (views.Live, StartDecision)):
            return view
        updates = await updates_of(self._service, self._elicitation, here=self._here)
        return replace(view, updates=updates)

    async def _view(self, *, is_bound: bool, offers: bool) -> views.View:
        ended = await self.ended()
        if ended is not None:
            return ended
        if self._elicitation.status is Status.EXCHANGING:
            return self._finishing()
        if is_paid_later(self._elicitation.progress):
            return self._pending()
        if is_bound and not self._takes_key:
            return self._failed_continue() or self._not_paid() or views.Waiting(**self._waiting())
        return await self.start(offers=offers)

    async def ended(self) -> views.View | None:
        """Return the view of the elicitation's end, or None while it is open."""
        status = self._elicitation.status
        if self._page == "decision":
            return decided_view(self._elicitation, now=self._now)
        if status is Status.ACCEPTED:
            return await self._done()
        if not status.is_final and self._now >= self._elicitation.expires_at:
            status = Status.EXPIRED
        if status is Status.EXPIRED and is_paid_later(self._elicitation.progress):
            return self._pending()
        if status not in ENDINGS or status is Status.EXCHANGING:
            return None
        if self._page == "payment" and status is Status.FAILED:
            paid = await self._service.kinds.payments.ledger.paid(self._elicitation)
            if paid is not None and paid.has_ended:  # refunded or disputed in the meantime
                return view_of(paid, server=self._asked.server, is_late=False, locale=self._locale)
        return views.Ended(
            server=self._server,
            ending=ENDINGS[status],
            kind=self._page,
            question=None
            if self._page in ("account", "payment")
            else question_of(self._elicitation),
            price=self._price(),
            provider=self._label(),
            problem=self._problem(),
            remove_at=self._manage() if self._elicitation.why == INTERRUPTED else None,
        )

    async def start(self, *, offers: bool) -> views.View:
        match self._page:
            case "account":
                found = await self._service.kinds.accounts.offers(self._elicitation)
                if offers and found:
                    return await self._use_account(found)
                return self.start_account()
            case "payment":
                return self._start_payment()
            case "url":
                return self._start_url()
            case "decision":
                live = {"live_url": f"{self._here}/live", "here_url": self._here}
                return waiting_view(self._elicitation, {**self._common(), **live})
            case _:
                return self.start_typed()

    def start_typed(self, form: PageForm | None = None) -> views.View:
        """Return the page with our own form. `form` has the values that were typed before."""
        common = {**self._common(), "continue_action": self._here}
        return start_view(self._elicitation, self._service.kinds, common, form=form)

    def _start_url(self) -> views.StartUrl:
        return views.StartUrl(
            **self._common(),
            message=self._asked.message,
            origins=self._asked.origins,
            continue_action=self._here,
        )

    def start_account(
        self, *, typed: str = "", fault: str | None = None, form: PageForm | None = None
    ) -> views.StartAccount:
        """Return the page that connects an account.

        `typed` is the tenant's address as the person typed it, and `fault` is its error. `form` has
        the values that the person typed for an account with an API key.
        """
        accounts = self._service.kinds.accounts
        terms, client = accounts.terms(self._elicitation), accounts.client_for(self._elicitation)
        asks_tenant = client is not None and client.provider.tenants and terms.tenant is None
        key = client.provider.key if client is not None and self._takes_key else None
        if client is not None and key is not None:
            form = form or form_of(accounts.api_keys.schema(client, terms))
            asks_tenant = ()
        return views.StartAccount(
            **self._common(),
            provider=self._label(),
            key_form=form,
            key_label=None if key is None else key.label,
            key_page=None if key is None or "{" in key.page else key.page,
            place=self._asked.origins[0],
            places=self._asked.origins,
            scopes=self._scopes(self._asks(terms.asked())),
            account=terms.account,
            team=accounts.connections.label_of_team(terms.team),
            tenant_label=client.provider.tenant_label if client and asks_tenant else None,
            tenant=typed,
            tenant_fault=fault,
            reason=terms.reason,
            continue_action=self._here,
            is_sandbox=self._is_sandbox,
        )

    async def _use_account(self, offers: Sequence[Connection]) -> views.UseAccount:
        terms = self._service.kinds.accounts.terms(self._elicitation)
        return views.UseAccount(
            **self._common(),
            provider=self._label(),
            choices=tuple(
                views.Choice(
                    person=_person(offered),
                    connected_for=tuple(
                        views.ToolName(tool=tool, tool_title=offered.titles.get(tool))
                        for tool in offered.tools
                    ),
                    scopes=self._scopes(offered.scopes),
                    allow_action=self._allow_action(offered),
                    is_limited_to_some=offered.only is not None,
                )
                for offered in offers
            ),
            reason=terms.reason,
            other_action=self._here if terms.account is None else None,
            team=self._service.kinds.accounts.connections.label_of_team(terms.team),
            is_sandbox=self._is_sandbox,
        )

    def _start_payment(self) -> views.StartPayment:
        terms = terms_of(self._elicitation)
        return views.StartPayment(
            **self._common(),
            price=price_in(self._locale, terms.price),
            what=terms.what,
            seller=self._label(),
            place=self._asked.origins[0],
            continue_action=self._here,
            is_test=not terms.is_live,
            refunded_after=self._service.kinds.payments.ledger.unused.get(terms.seller),
            statement=self._service.kinds.payments.flow.statement(terms.seller),
        )

    def _waiting(self) -> dict[str, Any]:
        return {
            **self._live(until=self._elicitation.expires_at),
            "origins": self._asked.origins,
            "provider": self._label() if self._page in ("account", "payment") else None,
            "again_action": self._here,
            "decline_action": f"{self._here}/decline",
            "csrf": self._csrf,
        }

    def _live(self, *, until: datetime) -> dict[str, Any]:
        return {
            "server": self._server,
            "status": self._elicitation.status,
            "now": self._now,
            "expires_at": until,
            "live_url": f"{self._here}/live",
            "here_url": self._here,
        }

    def _failed_continue(self) -> views.ProviderTrouble | None:
        """Return a view if the last press of Continue failed. The view stays after a reload."""
        attempt = self._elicitation.attempt
        if attempt is None or attempt.trouble is None:
            return None
        return views.ProviderTrouble(
            server=self._server,
            provider=self._label(),
            again_action=self._here,
            csrf=self._csrf,
            trouble=attempt.trouble,
            is_payment=self._page == "payment",
        )

    def _not_paid(self) -> views.NotPaid | None:
        """Return a view if the person came back without paying, or the payment page has closed."""
        attempt = self._elicitation.attempt
        checkout = checkout_of(attempt)
        if attempt is None or checkout is None or checkout.session is None:
            return None
        is_closed = checkout.url is None
        if not is_closed and attempt.state is not None:
            return None
        terms = terms_of(self._elicitation)
        return views.NotPaid(
            **self._waiting(),
            price=price_in(self._locale, terms.price),
            seller=self._label(),
            is_test=not terms.is_live,
            is_closed=is_closed,
        )

    def _finishing(self) -> views.Finishing:
        attempt = self._elicitation.attempt
        began_at = attempt.started_at if attempt is not None else self._now
        live = self._live(until=began_at + EXCHANGE_AT_MOST)
        return views.Finishing(**live, provider=self._label())

    def _pending(self) -> views.PaymentPending:
        terms = terms_of(self._elicitation)
        return views.PaymentPending(
            server=self._server,
            price=price_in(self._locale, terms.price),
            seller=self._label(),
            is_test=not terms.is_live,
            is_otherwise=is_paid_otherwise(self._elicitation.progress),
        )

    async def _done(self) -> views.View:
        server, page = self._server, self._page
        if page == "account":
            connected = await self._service.kinds.accounts.connected(self._elicitation)
            if connected is not None:
                return await self._done_account(connected)
        if page == "payment":
            paid = await self._service.kinds.payments.ledger.paid(self._elicitation)
            if paid is not None:
                is_late = self._elicitation.is_late
                return view_of(paid, server=server, is_late=is_late, locale=self._locale)
        if self._elicitation.is_late:
            return views.Late(server=server, kind=page)
        if self._service.kinds.on_page(self._elicitation.kind) is not None:
            return done_view(self._elicitation, self._service.kinds)
        return views.Done(server=server)

    async def _done_account(self, connected: Connection) -> views.DoneAccount:
        accounts = self._service.kinds.accounts
        terms, client = accounts.terms(self._elicitation), accounts.client_for(self._elicitation)
        left_out: tuple[str, ...] = ()
        if client is not None:
            asks = client.provider.scopes_to_request(terms.scopes)
            left_out = tuple(client.provider.missing(asks, granted=connected.scopes))
        return views.DoneAccount(
            server=self._server,
            provider=self._label(),
            person=_person(connected),
            left_out=self._scopes(left_out),
            is_late=self._elicitation.is_late,
            is_for_a_tool=bool(self._asked.tool),
            switch_back=await self._switch_back(connected),
            is_sandbox=self._is_sandbox,
        )

    async def _switch_back(self, connected: Connection) -> views.SwitchBack | None:
        """Return a notice if the person connected another account than before, or None."""
        former = await self._service.kinds.accounts.former(self._elicitation, connected)
        if former is None:
            return None
        can_be_back = former.is_connected and not former.is_active
        return views.SwitchBack(
            former=_person(former),
            is_done=former.is_active,
            action=self._allow_action(former) if can_be_back else None,
            csrf=self._csrf if can_be_back else None,
        )

    def _allow_action(self, connection: Connection) -> str:
        # The account is in the address, so that the person allows the account that the page showed.
        return f"{self._here}/allow?account={connection.id[OWNER_TAG_CHARACTERS:]}"

    def _common(self) -> dict[str, Any]:
        asked, address = self._asked, urlsplit(self._service.public_url)
        return {
            "server": self._server,
            "host": address.netloc,
            "phone_url": (
                None
                if is_loopback(address.hostname or "")
                else f"{self._service.public_url}{self._here}"
            ),
            "tool": asked.tool,
            "client": asked.client,
            "client_id": asked.client_id,
            "tool_title": asked.tool_title,
            "client_title": asked.client_title,
            "asked_at": self._elicitation.created_at,
            "now": self._now,
            "expires_at": self._elicitation.expires_at,
            "decline_action": f"{self._here}/decline",
            "csrf": self._csrf,
        }

    @property
    def _takes_key(self) -> bool:
        return traits_of(self._elicitation.kind).takes_key

    def _asks(self, scopes: tuple[str, ...]) -> tuple[str, ...]:
        client = self._service.kinds.accounts.client_for(self._elicitation)
        return scopes if client is None else client.provider.scopes_to_request(scopes)

    def _scopes(self, scopes: Sequence[str]) -> tuple[views.Scope, ...]:
        client = self._service.kinds.accounts.client_for(self._elicitation)
        return scopes_shown(None if client is None else client.provider, scopes)

    def _price(self) -> str | None:
        if self._page != "payment":
            return None
        return price_in(self._locale, terms_of(self._elicitation).price)

    def _problem(self) -> str | None:
        """Return why an account's exchange failed or a payment was refused, if that is known."""
        why = self._elicitation.why
        is_explained = (
            self._page in ("account", "payment") and self._elicitation.status is Status.FAILED
        )
        return why if is_explained and why not in _NO_PROBLEM else None

    def _label(self) -> str:
        return self._service.kinds.label(self._elicitation)

    def _manage(self) -> str | None:
        """Return the provider's page of connected apps, which may list us after an interruption."""
        if self._page != "account":
            return None
        client = self._service.kinds.accounts.client_for(self._elicitation)
        return None if client is None else client.provider.manage_page

    @property
    def _is_sandbox(self) -> bool:
        asked = self._elicitation
        return is_at_sandbox(self._service.kinds.accounts.terms(asked).client_id)


def scopes_shown(provider: Provider | None, scopes: Sequence[str]) -> tuple[views.Scope, ...]:
    """Return permissions in words, those that can destroy or change something first."""
    words: Mapping[str, str] = {} if provider is None else provider.scope_words
    shown = (
        views.Scope(
            words=words.get(scope, scope),
            raw=scope,
            risk="write" if provider is None else provider.risk_of(scope),
        )
        for scope in scopes
    )
    return tuple(sorted(shown, key=lambda one: ("delete", "write", "read").index(one.risk)))


def _person(connection: Connection) -> views.AccountName:
    return views.AccountName(label=connection.label, name=connection.name)
