"""Secret questions: their fields, answers, digests, stored terms and refusals."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from flows import elicit
from flows.errors import InvalidQuestion
from flows.kinds.secret import Secret, SecretTerms
from flows.question import Question
from flows.schema.schema import schema_of


@dataclass
class Acme:
    key: str
    is_live: bool


def secret(of: Question[Any]) -> Secret:
    assert isinstance(of.request, Secret)
    return of.request


def test_secret_without_schema_asks_for_text_and_returns_text() -> None:
    question = elicit.secret("Your Acme key, please.")
    request = secret(question)
    assert request.kind == "secret"
    assert [field.is_secret for field in request.schema.fields] == [True]
    assert question.answer({"value": "ak_1"}) == "ak_1"


def test_secret_with_schema_returns_its_type() -> None:
    question = elicit.secret("Your Acme key, please.", Acme)
    assert [field.is_secret for field in secret(question).schema.fields] == [True, False]
    assert question.answer({"key": "ak_1", "is_live": True}) == Acme(key="ak_1", is_live=True)


def test_digest_of_secret_question_depends_on_each_part() -> None:
    digests = {
        elicit.secret("Your key.").digest,
        elicit.secret("Your key!").digest,
        elicit.secret("Your key.", name="acme").digest,
        elicit.secret("Your key.", Acme).digest,
    }
    assert len(digests) == 4
    assert elicit.secret("Your key.", Acme).digest in digests


def test_stored_terms_contain_all_data_for_the_page() -> None:
    request = secret(elicit.secret("Your key.", Acme, name="acme"))
    stored = msgspec.convert(msgspec.json.decode(msgspec.json.encode(request.terms)), SecretTerms)
    assert stored.name == "acme"
    assert isinstance(stored.schema, dict)
    assert schema_of(stored.schema).fields == request.schema.fields


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a\n", "ü", "x" * 65])
def test_invalid_secret_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidQuestion):
        _ = elicit.secret("Your key.", name=name)


def test_secret_question_without_field_message_or_time_is_refused() -> None:
    with pytest.raises(InvalidQuestion):
        _ = elicit.secret("Your key.", {"type": "object", "properties": {}})
    with pytest.raises(InvalidQuestion):
        _ = elicit.secret(" ")
    with pytest.raises(InvalidQuestion):
        _ = elicit.secret("Your key.", timeout=timedelta(0))
