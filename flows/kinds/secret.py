"""The kind `secret`: typed into our own page, so the client and the model never see it.

Risks: a secret field is shown as plain text. The page therefore treats every text field as secret,
unless its schema says otherwise (`x-visible`, or a format such as `uri`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar, overload

from msgspec import Struct

from flows.elicitation.states import Json
from flows.errors import InvalidQuestion
from flows.kinds.checking import AnyCheck, CheckOf, must_be_check, name_of, with_initial
from flows.question import DEFAULT_TIMEOUT, Question, verb
from flows.schema.schema import Schema, schema_of, with_secrets

T = TypeVar("T")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


class SecretTerms(Struct, frozen=True, kw_only=True):
    """The stored terms: the JSON Schema, and the name under which the secret is stored."""

    schema: Json
    name: str | None = None
    has_rules: bool = False  # validators or a check, in addition to the schema
    # The names by which a process finds the author's check and model, see `checking`.
    check: str | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """A request for a secret. A named secret is stored encrypted for its owner.

    `check` is the author's function that checks an answer. `model` is the type of that answer.
    """

    kind: str = field(default="secret", init=False, repr=False, compare=False)
    message: str
    schema: Schema[Any]
    name: str | None = None
    check: AnyCheck | None = None
    model: object = None

    @property
    def terms(self) -> SecretTerms:
        return SecretTerms(
            schema=self.schema.json,
            name=self.name,
            has_rules=self.schema.has_rules or self.check is not None,
            check=name_of(self.check),
            model=name_of(self.model),
        )

    def facts(self) -> Json:
        return {
            "message": self.message,
            "name": self.name,
            "schema": self.schema.json,
            **({} if self.check is None else {"check": name_of(self.check)}),
        }


@overload
def secret(
    message: str,
    schema: type[T],
    *,
    initial: Mapping[str, object] | None = None,
    check: CheckOf[T] | None = None,
    name: str | None = None,
    key: str | None = None,
    timeout: timedelta = DEFAULT_TIMEOUT,
) -> Question[T]: ...
@overload
def secret(
    message: str,
    schema: Mapping[str, Json],
    *,
    initial: Mapping[str, object] | None = None,
    check: CheckOf[Mapping[str, Json]] | None = None,
    name: str | None = None,
    key: str | None = None,
    timeout: timedelta = DEFAULT_TIMEOUT,
) -> Question[Mapping[str, Json]]: ...
@overload
def secret(
    message: str,
    *,
    check: CheckOf[str] | None = None,
    name: str | None = None,
    key: str | None = None,
    timeout: timedelta = DEFAULT_TIMEOUT,
) -> Question[str]: ...
@verb
def secret(
    message: str,
    schema: type[Any] | Mapping[str, Json] = str,
    *,
    initial: Any = None,
    check: AnyCheck | None = None,
    name: str | None = None,
    key: str | None = None,
    timeout: timedelta = DEFAULT_TIMEOUT,
) -> Question[Any]:
    """Ask for a secret on our page; the client and the model never see it.

    Args:
        message: The question, as the person reads it.
        schema: `str` for one field, otherwise a pydantic model, a dataclass, a TypedDict or a JSON
            Schema.
        initial: A dict with the initial values of visible fields. A secret field cannot have one.
        check: As for `form`: a function that receives the answer before it is accepted, and returns
            None or the errors. After an error, the person types the secret again. A secret that is
            stored under `name` already is not checked again.
        name: A name under which the secret is stored for this person on this server, until
            `forget(name)`. Without a name, the secret is erased when the result has been
            sent, or 10 minutes after the answer at the latest.
        key: As for `url`.
        timeout: As for `url`.

    Returns:
        The question. Awaiting it returns the answer in the type of `schema`.

    Raises:
        InvalidQuestion: The name or the schema is not valid. `initial` is not valid for the fields,
            or names a secret. `check` is not a function at the top level of a module. In a tool,
            the error is InvalidUse and names the line.
    """
    if name is not None and not _NAME.fullmatch(name):
        raise InvalidQuestion("name must be 1 to 64 letters, digits or . _ -")
    asked = with_secrets(schema_of(schema))
    if not asked.fields:
        raise InvalidQuestion(
            "The schema has no fields, so the person cannot type anything. Add a field."
        )
    must_be_check(check, schema)
    return Question(
        message=message,
        request=Secret(
            message=message,
            schema=with_initial(asked, schema, initial),
            name=name,
            check=check,
            model=schema,
        ),
        answer=asked.typed,
        key=key,
        timeout=timeout,
    )
