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


def test_one_text_is_asked_and_comes_back_as_text() -> None:
    question = elicit.secret("Your Acme key, please.")
    request = secret(question)
    assert request.kind == "secret"
    assert [field.is_secret for field in request.schema.fields] == [True]
    assert question.answer({"value": "ak_1"}) == "ak_1"


def test_a_schema_comes_back_as_its_type() -> None:
    question = elicit.secret("Your Acme key, please.", Acme)
    assert [field.is_secret for field in secret(question).schema.fields] == [True, False]
    assert question.answer({"key": "ak_1", "is_live": True}) == Acme(key="ak_1", is_live=True)


def test_the_same_question_has_the_same_digest_and_every_word_counts() -> None:
    digests = {
        elicit.secret("Your key.").digest,
        elicit.secret("Your key!").digest,
        elicit.secret("Your key.", name="acme").digest,
        elicit.secret("Your key.", Acme).digest,
    }
    assert len(digests) == 4
    assert elicit.secret("Your key.", Acme).digest in digests


def test_the_record_says_all_that_the_page_needs() -> None:
    request = secret(elicit.secret("Your key.", Acme, name="acme"))
    kept = msgspec.convert(msgspec.json.decode(msgspec.json.encode(request.terms)), SecretTerms)
    assert kept.name == "acme"
    assert isinstance(kept.schema, dict)
    assert schema_of(kept.schema).fields == request.schema.fields


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a\n", "ü", "x" * 65])
def test_a_name_is_letters_digits_and_a_few_signs(name: str) -> None:
    with pytest.raises(InvalidQuestion):
        _ = elicit.secret("Your key.", name=name)


def test_a_question_without_a_field_or_words_is_refused() -> None:
    with pytest.raises(InvalidQuestion):
        _ = elicit.secret("Your key.", {"type": "object", "properties": {}})
    with pytest.raises(InvalidQuestion):
        _ = elicit.secret(" ")
    with pytest.raises(InvalidQuestion):
        _ = elicit.secret("Your key.", timeout=timedelta(0))
