"""The service: all parts that serve elicitations, built once from the settings."""

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path

from msgspec import Struct

from flows.crypto.tokens import Tokens
from flows.elicitation.run import Run
from flows.elicitation.states import RECORD_RETENTION, Elicitation
from flows.elicitation.traits import declared, traits_of
from flows.payments.session import terms_of
from webapp.calls.clients import McpClients
from webapp.calls.endings import Endings
from webapp.calls.running import RunningTools
from webapp.completion import Completing
from webapp.deadline import Clock
from webapp.elicitations.links import Links
from webapp.elicitations.plugins import Plugins, plugin_named
from webapp.elicitations.readiness import Readiness
from webapp.elicitations.service import Elicitations
from webapp.elicitations.waiters import Waiters
from webapp.events.service import EventsOut
from webapp.http.browser import Browser
from webapp.http.client import Outbound
from webapp.http.rate_limit import Rates
from webapp.identity.approvers import owners_of_people
from webapp.identity.identity import Identity
from webapp.identity.issuer import Issuer
from webapp.identity.operators import Operators
from webapp.identity.sign_in import SigningIn, SignInPlace
from webapp.identity.users import Users
from webapp.kinds.page_kind import question_text
from webapp.kinds.registry import Kinds, OwnKind
from webapp.limits import CallLimits
from webapp.logs.lines import RecentLines
from webapp.notifications.delivery import Deliver, NotifyTables, deliver
from webapp.notifications.sender import Notifier
from webapp.payments.certificates import CertificateCache, Certificates
from webapp.payments.events import Webhooks
from webapp.payments.webhook_log import WEBHOOK_RETENTION
from webapp.records.chain import AuditChain
from webapp.records.heads import Heads
from webapp.records.high_water import HighWater, StepBack
from webapp.records.ids import Notification
from webapp.records.owners import Owners, open_owners
from webapp.records.values import Approval, StoredWebhook, TurnedAway
from webapp.settings.quotas import PolicySettings
from webapp.settings.settings import Settings
from webapp.stores import Store
from webapp.telemetry.work import NONE, Telemetry

# The limit of button presses for one link, which a person never reaches by clicking.
PRESSES_AT_ONCE = 60
BETWEEN_PRESSES = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """The parts of a service that the settings do not describe.

    Plugins of the settings come before `plugins`. `kinds` are additional question kinds, and
    `issuers` are the issuers of the settings.
    """

    clock: Clock
    outbound: Outbound = field(default_factory=Outbound.none)  # by default reaches no provider
    certificates: Certificates | None = None
    plugins: Sequence[object] = ()
    kinds: Collection[type[OwnKind]] = ()
    limits: CallLimits = field(default_factory=CallLimits)
    issuers: Sequence[Issuer] = ()
    users: Users | None = None  # the application's users
    telemetry: Telemetry = NONE
    deliver: Deliver = deliver  # sends the notifications


class Service:
    """The parts of one process.

    If only one part uses another part, the used part is an attribute of the part that uses it.
    """

    def __init__(self, settings: Settings, owners: Owners, options: ServiceOptions) -> None:
        ring, policies, who = settings.ring, settings.policies, settings.identity
        store, tokens = owners.store, Tokens(ring, origin=settings.url)
        clock, outbound, users = options.clock, options.outbound, options.users
        self.clock = clock
        self.outbound = outbound
        self.public_url = settings.url.rstrip("/")
        self.sandbox_url = settings.sandbox_url
        self.request_state_keys = partial(ring.derive_all, "request state")
        self.elicitations = Elicitations(
            store=store,
            owners=owners,
            waiters=Waiters(),
            clock=clock,
            plugins=Plugins(
                [*map(plugin_named, policies.plugins), *options.plugins],
                patience=options.limits.hook,
            ),
            telemetry=options.telemetry,
            high_water=HighWater(store, clock=clock, folder=_marks_of(settings, store)),
        )
        self.elicitations.rows.retention_overrides = _retention_overrides(policies)
        chain = AuditChain(owners, clock=clock, retention=policies.keep_audit)
        if policies.audit:
            self.elicitations.rows.chain = chain
        self.heads = Heads(owners, ring, chain, folders=policies.audit_heads)
        self.readiness = Readiness(store)
        self.links = Links(tokens=tokens, public_url=settings.url)
        self.browser = Browser(public_url=settings.url, csrf_keys=partial(ring.derive_all, "csrf"))
        self.press_limit = Rates(burst=PRESSES_AT_ONCE, every=BETWEEN_PRESSES, clock=clock)
        self.identity = Identity(
            self.elicitations,
            ring=ring,
            tokens=tokens,
            browser=self.browser,
            public_url=settings.url,
            uid=settings.uid,
            rules=who.rules,
            users=users,
        )
        if options.issuers:
            self.identity.signing_in = SigningIn(
                [
                    SignInPlace(
                        name=one.name,
                        issuer=issuer,
                        client=one.client,
                        claim=one.claim,
                        scopes=who.approvers_scopes,
                        wanted=who.sign_in_claims,
                        public_url=settings.url,
                    )
                    for one, issuer in zip(who.issuers, options.issuers, strict=True)
                ],
                outbound=outbound,
                sessions=self.identity.sessions,
                logouts=self.identity.logouts,
                public_url=settings.url,
                clock=clock,
            )
        self.operators = Operators(
            rules=who.operator_rules,
            counts_for=who.decides_after_sign_in,
            identity=self.identity,
            browser=self.browser,
            tokens=tokens,
            store=store,
            public_url=settings.url,
            clock=clock,
        )
        self.recent_lines = RecentLines()
        self.kinds = Kinds(
            settings,
            self.elicitations,
            outbound=outbound,
            identity=self.identity,
            own=options.kinds,
        )
        if users is not None:
            self.kinds.rules.serves.add(users.application)
        self.completing = Completing(
            elicitations=self.elicitations,
            links=self.links,
            browser=self.browser,
            identity=self.identity,
            kinds=self.kinds,
            server=None if users is None else users.application,
        )
        self.webhooks = Webhooks(
            elicitations=self.elicitations,
            payments=self.kinds.payments,
            outbound=outbound,
        )
        self.certificates = options.certificates or Certificates(
            fetch=outbound.send, clock=clock, cache=CertificateCache(self.elicitations)
        )
        self.events = EventsOut(
            self.elicitations,
            outbound=outbound,
            addresses=settings.events,
            retention=policies.keep_events,
            waiting_at_most=policies.events_waiting,
        )
        self.notifier = Notifier(
            self.elicitations,
            tables=NotifyTables(
                settings.notify,
                owners={
                    table.name: owners_of_people(
                        table,
                        owners=owners,
                        identity=self.identity,
                        issuers=who.first_names,
                        application="" if users is None else users.application,
                    )
                    for table in settings.notify
                },
                ids=self.elicitations.rows.ids,
            ),
            deliver=options.deliver,
            headline=_headline_of,
            name=settings.brand.name,
            public_url=self.public_url,
            languages=settings.brand.languages,
        )
        self.clients = McpClients(self.elicitations, settings=policies, limits=options.limits)
        self.running_tools = RunningTools(
            orphaned_at_most=policies.orphaned_at_most, grace=policies.grace
        )
        self.endings = Endings(self.elicitations, kinds=self.kinds, completing=self.completing)

    @property
    def is_draining(self) -> bool:
        """True if the process is shutting down and should get no more requests."""
        return self.elicitations.waiters.is_draining

    async def store_stepped_back(self, back: StepBack) -> None:
        """Repair the payments after the store lost writes, in a failover or a restore.

        The store has all writes that were acknowledged before `back.survived`, by the clock of the
        process that acknowledged them. One process calls this method, and repeats it until it
        succeeds.
        """
        await self.kinds.payments.ledger.mark_perhaps_used(back)
        await self.kinds.payments.reconciling.reconcile(back.survived)

    async def drain(self, *, within: timedelta) -> None:
        """Prepare the shutdown: tell waiting clients to retry, and let running tools finish."""
        self.elicitations.waiters.drain()
        await self.running_tools.all_answered(within=within)
        await self.endings.finish(within=within)


def _retention_overrides(policies: PolicySettings) -> Mapping[type[Struct], timedelta]:
    """Return how much longer than by default the rows of each kind are stored."""
    records, webhooks = (
        policies.keep_records - RECORD_RETENTION,
        policies.keep_webhooks - WEBHOOK_RETENTION,
    )
    return {
        **dict.fromkeys((Elicitation, Run, Approval, Notification), records),
        **dict.fromkeys((StoredWebhook, TurnedAway), webhooks),
    }


def _marks_of(settings: Settings, store: Store) -> Path | None:
    """Return the folder outside of the store with the store's latest known state."""
    if store.address is None or settings.policies.store_marks is not None:
        return settings.policies.store_marks
    return None if settings.key_file is None else settings.key_file.path.parent / "marks"


def _headline_of(asked: Elicitation) -> str:
    """Return the text of the question for a notification. The text contains no amount."""
    if traits_of(asked.kind).gives == "receipt":
        return f"Pay for {terms_of(asked).what}"
    return question_text(asked)


@asynccontextmanager
async def open_service(
    settings: Settings, options: ServiceOptions, *, store: Store
) -> AsyncGenerator[Service]:
    """Build the service of these settings on an open store.

    Raises:
        Unreadable: The store was created with secrets that the ring lacks.
        BadPlugin: A plugin is invalid.
    """
    service = Service(settings, await open_owners(store=store, ring=settings.ring), options)
    try:
        with declared({kind.traits.name: kind.traits for kind in options.kinds}):
            yield service
    finally:
        await service.readiness.aclose()
        await service.running_tools.aclose()
        await service.endings.aclose()
        await service.elicitations.aclose()
