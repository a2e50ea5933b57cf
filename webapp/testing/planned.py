"""The planned actions of a test's person, in the order of the questions."""

from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial

import httpx
from mcp_types import ElicitResult

from flows.elicitation.states import Json
from flows.elicitation.traits import traits_of
from webapp.testing import _acts as acts
from webapp.testing._acts import ACCEPT, VALUE, Act, Do, Errand, Pause
from webapp.testing._application import TestedApplication
from webapp.testing.received import ReceivedQuestion
from webapp.testing.webhooks import ProviderWebhooks


class PlannedActions:
    """The actions that a person will do. Each method plans one action.

    `refused` has the errors, by field, of each answer of `answers_wrongly`.
    """

    webhooks: ProviderWebhooks
    refused: list[Mapping[str, str]]
    _app: TestedApplication
    _places: Collection[str]
    _plan: deque[Act | Pause]
    _later: list[Callable[[], Awaitable[object]]]

    def accepts(self, **content: Json) -> None:
        """Accept any question. `content` fills in a form."""

        async def do(errand: Errand) -> ElicitResult:
            if traits_of(errand.asked.kind).is_anothers:
                return await acts.decide(errand, by=(), approves=True, words="")
            match traits_of(errand.asked.kind).page:
                case "account":
                    return await acts.connect(errand, account=None, decision="approve")
                case "payment":
                    return await acts.pay(errand)
                case "url":
                    return await acts.visit_page(errand, {}, self._places)
                case _:
                    return await acts.answer(errand, content)

        self._will("accept", do)

    def declines(self) -> None:
        """Decline on our page or in the client's form."""
        self._will("decline", acts.decline)

    def dismisses(self) -> None:
        """Close the client's form or link without an answer. A later call can ask again."""
        self._will("dismiss it", acts.dismiss)

    def connects(self, account: str | None = None) -> None:
        """Connect an account, or allow the connected account.

        `account` is one of the sandbox's people, chosen on the provider's page.
        """
        does = partial(acts.connect, account=account, decision="approve")
        self._will("connect an account", does, "account")

    def types_key(self, key: str, *, user: str | None = None, tenant: str | None = None) -> None:
        """Type an API key, or a user name and a password, for an account.

        The API tests the key: simulate the API with `outside` of `elicit_person`. For a provider
        of `elicit.toml`, the sandbox accepts `sandbox-key-octocat` and `sandbox-key-hubot` too.
        """
        given = {"tenant": tenant, "user": user, "key": key}
        fields = {name: value for name, value in given.items() if value is not None}
        self._will("type a key", partial(acts.type_key, fields=fields), "account")

    def denies(self) -> None:
        """Decline on the provider's page of an account."""
        does = partial(acts.connect, account=None, decision="deny")
        self._will("deny the account", does, "account")

    def pays(self) -> None:
        """Pay at the provider's page."""
        self._will("pay", acts.pay, "payment")

    def leaves(self) -> None:
        """Return from the checkout without paying."""
        self._will("leave the checkout", partial(acts.pay, button="cancel"), "payment")

    def pays_late(self) -> None:
        """Pay after the question has expired: the webhook arrives when the tool has given up.

        `call` delivers the webhook before it returns. With a client of your own, call `catch_up`.
        """

        async def do(errand: Errand) -> ElicitResult:
            self.webhooks.hold()
            await acts.pay(errand, comes_back=False)
            self._later.append(self.webhooks.release)
            return await acts.expire(errand)

        self._will("pay late", do, "payment")

    def types(self, *value: str, **fields: Json) -> None:
        """Type a secret on our page: one text, or the fields by name."""
        does = partial(acts.answer, content=_secret(value, fields, of="types"))
        self._will("type a secret", does, "secret")

    def fills(self, **content: Json) -> None:
        """Fill in a form with these answers."""
        self._will("fill in a form", partial(acts.answer, content=content), "form", "confirm")

    def answers_wrongly(self, *value: str, **fields: Json) -> None:
        """Give an answer to a form or a secret that your `check` or the validation refuses.

        The next planned action answers the same question. A client's form without a `check` is not
        shown again: the tool gets InvalidAnswer.
        """
        content = _secret(value, fields, of="answers_wrongly")
        does = partial(acts.answer, content=content, refused=self.refused)
        self._will_leave_open("answer wrongly", does, "form", "secret")

    def visits(self, **fields: str) -> None:
        """Follow a `url` question to the author's own pages and fill in their forms."""
        does = partial(acts.visit_page, fields=fields, places=self._places)
        self._will("visit a page", does, "url")

    def completes(self, **content: Json) -> None:
        """Follow a `url` question, then complete it as the author's service would."""

        async def do(errand: Errand) -> ElicitResult:
            await errand.go_on()
            await errand.service.completing.complete(errand.asked.id, content, owner=None)
            return ACCEPT

        self._will("complete a visit", do, "url")

    def continues(self, then: Callable[[ReceivedQuestion], Awaitable[object]]) -> None:
        """Follow a `url` question to its address, then await `then` with the question.

        In `then`, the test does what the author's service or a vendor does next: it sends a
        webhook to the author's route with `posts`.
        """

        async def do(errand: Errand) -> ElicitResult:
            await errand.go_on()
            await then(errand.asks)
            return ACCEPT

        self._will("continue to the address of a visit", do, "url")

    def approves(self, *, by: str | Sequence[str] = (), comment: str = "") -> None:
        """Let approvers approve a request, on their pages.

        `by` is the subject of the approver, or several subjects in the order of their decisions. By
        default, as many people of the table approve as the request needs. The person who asked is
        not among them.
        """
        self._decide("be approved", by, approves=True, words=comment)

    def refuses(self, *, by: str | Sequence[str] = (), reason: str = "") -> None:
        """Let an approver decline a request, on their page."""
        self._decide("be refused", by, approves=False, words=reason)

    def delegates(self, to: str, *, by: str | None = None) -> None:
        """Let an approver hand a request to `to`, another subject of their table.

        The next planned action decides the request. `by` is the subject of the approver who hands
        the request over, by default an approver of the table.
        """
        self._will_leave_open(
            f"hand it to {to}", partial(acts.delegate, by=by, to=to), acts.DECISION
        )

    def leaves_open(self) -> None:
        """Do nothing yet: `call` returns what the model sees, and the same call continues later."""
        self._plan.append(Pause.LEFT_OPEN)

    def sees_nothing(self) -> None:
        """Let the client show nothing of a question, so that the model passes the link on.

        The next planned action then answers the question.
        """
        self._plan.append(Pause.UNSEEN)

    def disconnects(self) -> None:
        """Lose the client's connection at a question. `call` reconnects and repeats the call."""
        self._plan.append(Pause.DISCONNECTED)

    def never_comes(self) -> None:
        """Open nothing until the question expires."""
        self._will("leave the question unanswered", acts.expire)

    def does(self, what: Callable[[str, httpx.AsyncClient], Awaitable[object]]) -> None:
        """Run a custom action: `what` receives the link and the person's browser."""

        async def do(errand: Errand) -> ElicitResult:
            await what(errand.link, errand.browser)
            return ACCEPT

        self._will("run the function of the test", do)

    def _decide(self, says: str, by: str | Sequence[str], *, approves: bool, words: str) -> None:
        people = (by,) if isinstance(by, str) else tuple(by)
        does = partial(acts.decide, by=people, approves=approves, words=words)
        self._will(says, does, acts.DECISION)

    def _will(self, says: str, do: Do, *pages: str) -> None:
        self._plan.append(Act(says=says, do=do, pages=frozenset(pages) or None))

    def _will_leave_open(self, says: str, do: Do, *pages: str) -> None:
        """Plan an action after which the question is still open."""
        self._plan.append(Act(says=says, do=do, pages=frozenset(pages), leaves_open=True))


def _secret(value: tuple[str, ...], fields: Mapping[str, Json], *, of: str) -> Mapping[str, Json]:
    if len(value) + bool(fields) != 1:
        raise TypeError(f'{of}(...) takes one text, or the fields by name: {of}(user="ada").')
    return {VALUE: value[0]} if value else fields
