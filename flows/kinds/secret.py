"""The kind `secret`: typed into our own page, so the client and the model never see it.

Risks: a secret field is shown as plain text. On this page every text is secret, unless its schema
says otherwise (`x-visible`, or a format such as `uri`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar, overload

from msgspec import Struct

from flows.elicitation.states import Json
from flows.errors import InvalidQuestion
from flows.question import DEFAULT_TIMEOUT, Question, verb
from flows.schema.schema import Schema, schema_of, with_secrets

T = TypeVar("T")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


class SecretTerms(Struct, frozen=True, kw_only=True):
    """The stored terms: the JSON Schema, and the name under which the secret is stored."""

    schema: Json
    name: str | None = None
    has_rules: bool = False  # the model has validators in addition to the schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """A request for a secret. A named secret is stored encrypted for its owner."""

    kind: str = field(default="secret", init=False, repr=False, compare=False)
    message: str
    schema: Schema[Any]
    name: str | None = None

    @property
    def terms(self) -> SecretTerms:
        return SecretTerms(schema=self.schema.json, name=self.name, has_rules=self.schema.has_rules)

    def facts(self) -> Json:
        return {"message": self.message, "name": self.name, "schema": self.schema.json}


@overload
def secret(
    message: str,
    schema: type[T],
    *,
    name: str | None = None,
    key: str | None = None,
    timeout: timedelta = DEFAULT_TIMEOUT,
) -> Question[T]: ...
@overload
def secret(
    message: str,
    schema: Mapping[str, Json],
    *,
    name: str | None = None,
    key: str | None = None,
    timeout: timedelta = DEFAULT_TIMEOUT,
) -> Question[Mapping[str, Json]]: ...
@overload
def secret(
    message: str,
    *,
    name: str | None = None,
    key: str | None = None,
    timeout: timedelta = DEFAULT_TIMEOUT,
) -> Question[str]: ...
@verb
def secret(
    message: str,
    schema: type[Any] | Mapping[str, Json] = str,
    *,
    name: str | None = None,
    key: str | None = None,
    timeout: timedelta = DEFAULT_TIMEOUT,
) -> Question[Any]:
    """Ask for a secret on our page; the client and the model never see it.

    `schema` is `str` for one field, otherwise a pydantic model, a dataclass, a TypedDict or a JSON
    Schema. With `name`, the secret is stored for this person on this server until `forget(name)`.
    Without `name`, the secret is erased when the result was sent, at most 10 minutes after the
    answer. Raises InvalidQuestion for an invalid name or schema.

    `key` and `timeout` are as for `url`.
    """
    if name is not None and not _NAME.fullmatch(name):
        raise InvalidQuestion("name must be 1 to 64 letters, digits or . _ -")
    asked = with_secrets(schema_of(schema))
    if not asked.fields:
        raise InvalidQuestion(
            "The schema has no fields, so the person cannot type anything. Add a field."
        )
    return Question(
        message=message,
        request=Secret(message=message, schema=asked, name=name),
        answer=asked.typed,
        key=key,
        timeout=timeout,
    )
