"""The service: all parts that serve elicitations, built once from the settings."""

from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path

from msgspec import Struct

from flows.crypto.tokens import Tokens
from flows.elicitation.run import Run
from flows.elicitation.states import RECORD_KEPT, Elicitation
from flows.elicitation.tool_call import ToolCall
from flows.elicitation.traits import declared
from flows.elicitation.user_code import UserCodeGenerator
from webapp.calls.call import Call, Presenter
from webapp.calls.clients import McpClients
from webapp.calls.running import RunningTools
from webapp.completion import Completing
from webapp.deadline import Clock
from webapp.elicitations.changes import ToolLists
from webapp.elicitations.links import Links
from webapp.elicitations.plugins import Plugins, plugin_named
from webapp.elicitations.readiness import Readiness
from webapp.elicitations.service import Elicitations
from webapp.elicitations.waiters import Waiters
from webapp.events.service import EventsOut
from webapp.http.browser import Browser
from webapp.http.client import Outbound
from webapp.http.rate_limit import Rates
from webapp.identity.api_keys import ApiKeys
from webapp.identity.approvers import Approvers
from webapp.identity.identity import Caller, Identity
from webapp.identity.issuer import Issuer
from webapp.identity.local_peer import LocalPeers
from webapp.identity.operators import Operators
from webapp.identity.pairing import Pairing
from webapp.identity.sessions import Sessions
from webapp.identity.sign_in import SigningIn
from webapp.identity.user_codes import UserCodes
from webapp.identity.users import Users
from webapp.kinds.decision import Decisions
from webapp.kinds.gate import Gates
from webapp.kinds.page_kind import PageKind
from webapp.kinds.quotas import Quotas
from webapp.kinds.registry import Kinds, OwnKind
from webapp.kinds.rules import Rules
from webapp.kinds.secret import SecretPage
from webapp.kinds.url import Visits
from webapp.limits import CallLimits
from webapp.logs.memory_log import RecentLines
from webapp.oauth.accounts import Accounts
from webapp.payments.certificates import Certificates, Shelf
from webapp.payments.events import Webhooks
from webapp.payments.payments import Payments
from webapp.payments.webhook_log import KEPT as WEBHOOK_KEPT
from webapp.payments.webhook_log import WebhookLog
from webapp.records.chain import AuditChain
from webapp.records.heads import Heads
from webapp.records.high_water import HighWater, StepBack
from webapp.records.owners import open_owners
from webapp.records.values import Approval, StoredWebhook, TurnedAway
from webapp.settings.quotas import PolicySettings
from webapp.settings.settings import Settings
from webapp.stores import Store
from webapp.telemetry.telemetry import NONE, Telemetry

# The limit of button presses for one link, which a person never reaches by clicking.
PRESSES_AT_ONCE = 60
BETWEEN_PRESSES = timedelta(seconds=1)
# The limit of questions by anonymous callers, because each question is stored.
QUESTIONS_AT_ONCE = 30
BETWEEN_QUESTIONS = timedelta(seconds=10)
# The limit of unsigned notices from one address. A provider sends from few addresses, and repeats
# a notice that was refused.
HINTS_AT_ONCE = 100
BETWEEN_HINTS = timedelta(seconds=0.2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    elicitations: Elicitations
    kinds: Kinds
    webhooks: Webhooks
    webhook_log: WebhookLog
    events: EventsOut
    outbound: Outbound
    links: Links
    browser: Browser
    completing: Completing
    identity: Identity
    sessions: Sessions
    signing_in: SigningIn | None
    pairing: Pairing
    operators: Operators
    recent_lines: RecentLines
    user_codes: UserCodes
    api_keys: ApiKeys
    press_limit: Rates
    anonymous_limit: Rates  # questions of anonymous callers, by address
    hint_limit: Rates  # unsigned notices, by address
    certificates: Certificates
    running_tools: RunningTools
    tool_lists: ToolLists
    clock: Clock
    limits: CallLimits
    readiness: Readiness
    telemetry: Telemetry
    heads: Heads
    clients: McpClients
    public_url: str
    sandbox_url: str | None
    users: Users | None  # the served application's users; None if no application is served
    request_state_keys: Callable[[], tuple[bytes, ...]] = field(repr=False)

    @property
    def is_draining(self) -> bool:
        """True if the process is shutting down and should get no more requests."""
        return self.elicitations.waiters.is_draining

    def call(
        self,
        caller: Caller,
        tool: ToolCall,
        *,
        presenter: Presenter,
        run_id: str | None = None,
        run_key: str | None = None,
        accounts: Mapping[str, str] | None = None,
        is_of_task: bool = False,
        leg: str | None = None,
    ) -> Call:
        """Build the call for one request.

        `accounts` are the accounts that the tool got in earlier requests, by the question's digest.
        """
        return Call(
            elicitations=self.elicitations,
            links=self.links,
            completing=self.completing,
            kinds=self.kinds,
            outbound=self.outbound,
            landed=self.running_tools.landed,
            caller=caller,
            tool=tool,
            presenter=presenter,
            run_id=run_id,
            run_key=run_key,
            accounts=accounts,
            is_of_task=is_of_task,
            leg=leg,
        )

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


def _retention_overrides(policies: PolicySettings) -> Mapping[type[Struct], timedelta]:
    """Return how much longer than by default the rows of each kind are stored."""
    records, webhooks = policies.keep_records - RECORD_KEPT, policies.keep_webhooks - WEBHOOK_KEPT
    return {
        **dict.fromkeys((Elicitation, Run, Approval), records),
        **dict.fromkeys((StoredWebhook, TurnedAway), webhooks),
    }


def _marks_of(settings: Settings, store: Store) -> Path | None:
    """Return the folder outside of the store with the store's latest known state."""
    if store.address is None or settings.policies.store_marks is not None:
        return settings.policies.store_marks
    return None if settings.key_file is None else settings.key_file.path.parent / "marks"


@asynccontextmanager
async def open_service(
    settings: Settings,
    *,
    store: Store,
    clock: Clock,
    outbound: Outbound | None = None,
    certificates: Certificates | None = None,
    plugins: Sequence[object] = (),
    kinds: Collection[type[OwnKind]] = (),
    limits: CallLimits | None = None,
    issuer: Issuer | None = None,
    users: Users | None = None,
    telemetry: Telemetry = NONE,
) -> AsyncGenerator[Service]:
    """Build the service of these settings on an open store.

    Without `outbound`, no provider can be asked. Plugins of the settings come before `plugins`.
    `kinds` are additional question kinds, `issuer` is the issuer named in the settings, and
    `users` are the application's users.

    Raises:
        Unreadable: The store was created with secrets that the ring lacks.
        BadPlugin: A plugin is invalid.
    """
    ring, policies, who = settings.ring, settings.policies, settings.identity
    public_url, uid = settings.url, settings.uid
    # Only users of this machine may see the path of the file of declarations in errors.
    config = str(settings.config) if settings.is_local and settings.config else "elicit.toml"
    owners = await open_owners(store=store, ring=ring)
    limits = limits or CallLimits()
    elicitations = Elicitations(
        store=store,
        owners=owners,
        waiters=Waiters(),
        clock=clock,
        plugins=Plugins([*map(plugin_named, policies.plugins), *plugins], patience=limits.hook),
        telemetry=telemetry,
        high_water=HighWater(store, clock=clock, folder=_marks_of(settings, store)),
    )
    elicitations.rows.retention_overrides = _retention_overrides(policies)
    chain = AuditChain(owners, clock=clock, retention=policies.keep_audit)
    if policies.audit:
        elicitations.rows.chain = chain
    tokens = Tokens(ring, origin=public_url)
    links = Links(tokens=tokens, public_url=public_url)
    browser = Browser(public_url=public_url, csrf_keys=partial(ring.derive_all, "csrf"))
    sessions = Sessions(
        tokens=tokens, store=store, public_url=public_url, issuer=who.issuer, clock=clock
    )
    pairing = Pairing(
        ring=ring,
        tokens=tokens,
        store=store,
        public_url=public_url,
        uid=uid,
        clock=clock,
        people_sign_in=who.issuer is not None,
    )
    identity = Identity(
        owners=owners,
        locality=LocalPeers(uid=uid, public_url=public_url),
        uid=uid,
        rules=who.rules,
        sessions=sessions,
        browser=browser,
        pairing=pairing,
        users=users,
    )
    outbound = outbound or Outbound.none()
    signing_in = None
    if who.client is not None and issuer is not None:
        signing_in = SigningIn(
            issuer=issuer,
            client=who.client,
            claim=who.claim,
            scopes=who.approvers_scopes,
            wanted=who.sign_in_claims,
            public_url=public_url,
            outbound=outbound,
            sessions=sessions,
            clock=clock,
        )
    codes = UserCodeGenerator(partial(ring.derive_all, "code"))
    built = Kinds(
        visits=Visits(),
        accounts=Accounts(
            elicitations=elicitations,
            outbound=outbound,
            providers=settings.providers,
            credentials=settings.credentials,
            config=config,
        ),
        payments=Payments(
            elicitations=elicitations,
            outbound=outbound,
            sellers=settings.sellers,
            refund_unused=settings.refund_unused,
            unreached=settings.unreached,
            config=config,
        ),
        secrets=SecretPage(elicitations=elicitations),
        forms=PageKind(elicitations=elicitations),
        gates=Gates(elicitations=elicitations, policy=settings.gate),
        decisions=Decisions(
            elicitations=elicitations,
            approvers=Approvers(
                rules=who.approval,
                owners=owners,
                identity=identity,
                issuer=who.issuer,
                application="" if users is None else users.application,
                clock=clock,
                config=config,
            ),
        ),
        quotas=Quotas(elicitations=elicitations, settings=policies),
        plugins=elicitations.plugins,
        rules=Rules(elicitations),
        others={kind.traits.name: kind(elicitations=elicitations) for kind in kinds},
    )
    completing = Completing(
        elicitations=elicitations,
        links=links,
        browser=browser,
        identity=identity,
        kinds=built,
        server=None if users is None else users.application,
    )
    service = Service(
        elicitations=elicitations,
        kinds=built,
        webhooks=Webhooks(elicitations=elicitations, payments=built.payments, outbound=outbound),
        webhook_log=WebhookLog(elicitations),
        events=EventsOut(
            elicitations,
            outbound=outbound,
            addresses=settings.events,
            retention=policies.keep_events,
            waiting_at_most=policies.events_waiting,
        ),
        outbound=outbound,
        links=links,
        browser=browser,
        completing=completing,
        identity=identity,
        sessions=sessions,
        signing_in=signing_in,
        pairing=pairing,
        operators=Operators(
            rules=who.operators,
            counts_for=who.decides_after_sign_in,
            identity=identity,
            browser=browser,
            tokens=tokens,
            store=store,
            public_url=public_url,
            can_link=pairing.is_possible,
            clock=clock,
        ),
        recent_lines=RecentLines(),
        user_codes=UserCodes(elicitations=elicitations, codes=codes),
        api_keys=ApiKeys(elicitations),
        press_limit=Rates(burst=PRESSES_AT_ONCE, every=BETWEEN_PRESSES, clock=clock),
        anonymous_limit=Rates(burst=QUESTIONS_AT_ONCE, every=BETWEEN_QUESTIONS, clock=clock),
        hint_limit=Rates(burst=HINTS_AT_ONCE, every=BETWEEN_HINTS, clock=clock),
        certificates=certificates
        or Certificates(fetch=outbound.send, clock=clock, shelf=Shelf(elicitations)),
        running_tools=RunningTools(
            orphaned_at_most=policies.orphaned_at_most, grace=policies.grace
        ),
        tool_lists=ToolLists(elicitations.changes),
        clock=clock,
        limits=limits,
        readiness=Readiness(store),
        telemetry=telemetry,
        heads=Heads(owners, ring, chain, folders=policies.audit_heads),
        clients=McpClients(elicitations, settings=policies, silence=limits.silence),
        public_url=public_url.rstrip("/"),
        sandbox_url=settings.sandbox_url,
        users=users,
        request_state_keys=partial(ring.derive_all, "request state"),
    )
    try:
        with declared({kind.traits.name: kind.traits for kind in kinds}):
            yield service
    finally:
        await service.readiness.aclose()
        await service.running_tools.aclose()
        await service.elicitations.aclose()
