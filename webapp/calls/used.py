"""The things that the body of a call received and used: accounts, payments, secrets, `once`.

Risks: a result carries a secret to the model, or a call that used a payment is treated as if it had
used nothing. So every answer is recorded here when the body receives it.
"""

import json
from collections.abc import Mapping
from typing import Any, TypeAlias, cast

from flows.elicitation import run as runs
from flows.elicitation.run import Run
from flows.elicitation.states import Json
from flows.elicitation.traits import traits_of
from flows.errors import InvalidQuestion
from flows.question import Request
from flows.schema.schema import Schema, secrets_in
from webapp.calls.once import Working
from webapp.logs.masking import masked

Fact: TypeAlias = tuple[str, str]  # kind and digest, which distinguish questions


class CallUse:
    """The things one request used. `accounts`: earlier requests' accounts, by question digest."""

    def __init__(self, accounts: Mapping[str, str]) -> None:
        self.accounts = dict(accounts)  # with the accounts of this request
        self.of_earlier_legs = frozenset(accounts)
        self.hidden: set[str] = set()  # texts that no result or question may carry to the model
        self.working = Working()
        self.has_paid = False  # True once the body has seen a payment
        self.has_known = False  # True if an answer was used without a question
        self.again: bool | None = None  # set by `note_use`; None: no payment or `once` was used
        self.payments: list[str] = []  # ids of payments that the body has seen
        self.receipt: str | None = None  # id of the latest payment; None for a permanent purchase

    @property
    def must_finish(self) -> bool:
        """True if only an explicit cancel ends the body: it has a payment or began `once`."""
        return self.has_paid or self.working.has_begun

    def drop_accounts(self) -> None:
        """Drop the accounts of earlier requests: this call uses the accounts in use now."""
        for digest in self.of_earlier_legs:
            self.accounts.pop(digest, None)
        self.of_earlier_legs = frozenset[str]()

    def note(self, fact: Fact, content: Json, request: Request | None = None) -> None:
        """Record the secret texts of an answer, and which account or receipt the answer is."""
        kind, digest = fact
        traits = traits_of(kind)
        if traits.is_secret:
            schema = cast("Schema[Any] | None", getattr(request, "schema", None))
            texts = _texts(content) if schema is None else secrets_in(schema, content)
            self.hidden.update(texts)
        elif traits.gives == "account" and isinstance(content, Mapping):
            self.hidden.update(_texts(content.get("access_token")))
            self.accounts[digest] = str(content.get("connection"))
        elif traits.gives == "receipt" and isinstance(content, Mapping):
            self.has_paid = True
            self.payments.append(str(content.get("id")))
            # Many calls use one permanent purchase, so `once` results are not stored under it.
            is_for_good = bool(content.get("once"))
            self.receipt = None if is_for_good else str(content.get("id"))
            if not is_for_good:
                self.note_use(again=False)

    def must_hold_nothing_hidden(self, question: Json) -> None:
        """Check that the question contains no secret text. Raises InvalidQuestion."""
        plain = json.loads(json.dumps(question)) if self.hidden else None
        if masked(plain, self.hidden, is_quoting=False) != plain:
            raise InvalidQuestion(
                "The question holds a secret that the person typed in this call, or the key of "
                "their account, and clients and models read questions. Take it out; name the key "
                "by what it is for, as in: Use the key of your weather service?"
            )

    def note_use(self, *, again: bool) -> None:
        """Record use of a payment or `once`.

        With `again`, an identical call may repeat the work.
        """
        self.again = again or bool(self.again)

    def noted(self, run: Run) -> Run:
        return run if self.again is None else runs.note_use(run, again=self.again)


def _texts(content: Json) -> list[str]:
    match content:
        case str():
            return [content]
        case Mapping():
            return [text for value in content.values() for text in _texts(value)]
        case list() | tuple():
            return [text for value in content for text in _texts(value)]
        case int() | float() if not isinstance(content, bool):
            return [str(content)]
        case _:
            return []
