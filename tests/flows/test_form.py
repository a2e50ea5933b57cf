"""What a form may not ask for: the fields whose name or title says that they take a secret."""

import pytest

from flows.elicitation import Json
from flows.errors import InvalidQuestion
from flows.form import form_question

SECRETS = [
    "password",
    "passwords",
    "password2",
    "password_confirmation",
    "passwordConfirm",
    "newPassword",
    "userpassword",
    "confirm-password",
    "passwd",
    "pwd",
    "user_pwd",
    "pwd2",
    "passphrase",
    "passcode",
    "pass_phrase",
    "pin",
    "pin_code",
    "pinCode",
    "PIN",
    "user_pin",
    "pin2",
    "cvv",
    "cvv2",
    "cvc",
    "card_number",
    "cardNumber",
    "creditCardNumber",
    "secret",
    "secrets",
    "client_secret",
    "clientsecret",
    "clientSecret",
    "client_secret_value",
    "otp_secret",
    "token",
    "tokens",
    "access_token",
    "accesstoken",
    "accessToken",
    "API_TOKEN",
    "token_value",
    "api_key",
    "apikey",
    "APIKey",
    "api_keys",
    "apiKey2",
    "openai_apikey",
    "private_key",
    "secret_key",
    "ssh_key",
    "sshKey",
    "signing_key",
    "access_key",
    "credentials",
    "credential",
    "aws_credentials",
    "seed_phrase",
    "seedPhrase",
    "recovery_phrase",
]
NO_SECRETS = [
    "token_count",
    "max_tokens",
    "maxTokens",
    "number_of_tokens",
    "token_limit",
    "token_name",
    "token_url",
    "tokenizer",
    "author",
    "authority",
    "shipping",
    "shipping_pin_color",
    "secret_santa",
    "secretary",
    "secretariat",
    "pinned",
    "pineapple",
    "spinning",
    "opinion",
    "keyboard",
    "key",
    "keys",
    "keywords",
    "public_key",
    "primary_key",
    "sort_key",
    "access_key_id",
    "passport_country",
    "passport",
    "passenger",
    "compass",
    "code",
    "verification_code",
    "otp",
    "mfa_code",
    "one_time_password",
    "card_holder",
    "discard_reason",
    "password_length",
    "passwordLength",
    "password_policy",
    "password_hint",
    "name",
    "email",
    "response",
    "bypass",
    "pass",
    "phrase",
]


def asked_as(name: str, **about: Json) -> None:
    field: Json = {"type": "string", **about}
    _ = form_question("?", {"type": "object", "properties": {name: field}})


@pytest.mark.parametrize("name", SECRETS)
def test_a_name_that_says_secret_is_refused(name: str) -> None:
    with pytest.raises(InvalidQuestion, match=r"ask for it with elicit\.secret"):
        asked_as(name)


@pytest.mark.parametrize("name", NO_SECRETS)
def test_a_name_that_only_sounds_like_one_is_not(name: str) -> None:
    asked_as(name)


@pytest.mark.parametrize(
    "title",
    ["Your password", "Password (again)", "The card's PIN:", "API key", "Access-Token", "Secret 2"],
)
def test_a_title_that_says_secret_is_refused(title: str) -> None:
    with pytest.raises(InvalidQuestion, match=r"elicit\.secret"):
        asked_as("response", title=title)


@pytest.mark.parametrize(
    "title",
    [
        "How many tokens?",
        "Secret Santa",
        "One-time password",
        "Code of 6 digits",
        "Length of a key",
    ],
)
def test_a_title_that_only_sounds_like_one_is_not(title: str) -> None:
    asked_as("response", title=title)


def test_what_is_ticked_or_chosen_is_no_secret_and_no_number_is_a_token() -> None:
    asked_as("reset_password", type="boolean")
    asked_as("token", type="string", enum=["short", "long"])
    asked_as("tokens", type="integer")
    with pytest.raises(InvalidQuestion):
        asked_as("pin", type="integer")
