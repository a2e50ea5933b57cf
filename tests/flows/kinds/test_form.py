"""Forbidden fields of forms: those whose name or title says that they ask for a secret."""

import pytest

from flows import elicit
from flows.elicitation.states import Json
from flows.errors import InvalidQuestion

ASK_FOR_SECRETS = """
    awscredentials password passwords password2 password_confirmation passwordConfirm
    newPassword userpassword confirm-password passwd pwd user_pwd pwd2 passphrase passcode
    pass_phrase pin pin_code pinCode PIN user_pin pin2 cvv cvv2 cvc card_number cardNumber
    creditCardNumber secret secrets client_secret clientsecret clientSecret client_secret_value
    otp_secret token tokens access_token accesstoken accessToken API_TOKEN token_value api_key
    apikey APIKey api_keys apiKey2 openai_apikey private_key secret_key ssh_key sshKey
    signing_key access_key credentials credential aws_credentials seed_phrase seedPhrase
    recovery_phrase pass user_pass dbPass passkey bearer jwt session_cookie sessionCookie
    oauth_key openai_key openaiKey stripe-key AWS_KEY master_key license_key security_code
    securitycode access_code recovery_code backup_codes backupCodes credit_card creditCard
    creditcard debit_card card_pan pan PAN ccn cvv_code cvc_code secret_id mastercard_number
"""
SECRETS = ASK_FOR_SECRETS.split()
SOUND_LIKE_SECRETS = """
    token_count max_tokens maxTokens number_of_tokens token_limit token_name token_url
    tokenizer author authority shipping shipping_pin_color secret_santa secretary secretariat
    pinned pineapple spinning opinion keyboard key keys keywords public_key primary_key
    sort_key access_key_id passport_country passport passenger compass code verification_code
    otp mfa_code one_time_password card_holder discard_reason password_length passwordLength
    password_policy password_hint name email response bypass boarding_pass pass_rate pass_type
    user_passes_on passages phrase company panel span frying_pan expand postal_code zip_code
    country_code discount_code promo_code error_code one_time_access_code author_key
    project_key foreign_key translation_key raw_key monkey api_key_name token_id cookie
    cookie_flavour cookie_policy card card_title business_card credit_card_last4
    credit_card_type discard_number spin_number flight_number seed bearing word id address
"""
NO_SECRETS = SOUND_LIKE_SECRETS.split()


QUESTIONS_FOR_SECRETS = [
    "What is your GitHub password?",
    "API key please",
    "Your card's security code",
    "Paste the access token of the shop, and I go on",
    "Enter your password, company name",
    "Which token? Last one?",
]
OTHER_QUESTIONS = [
    "What shall I order?",
    "Where shall the password reset go?",
    "Which one-time code did you get?",
    "How many tokens may it cost?",
    "Who is the author of the key chapter?",
    "Which pass do you cross the Alps by?",
    "In which pan?",
]


def asked_as(name: str, **about: Json) -> None:
    field: Json = {"type": "string", **about}
    _ = elicit.form("?", {"type": "object", "properties": {name: field}})


@pytest.mark.parametrize("name", SECRETS)
def test_field_named_like_a_secret_is_refused(name: str) -> None:
    with pytest.raises(InvalidQuestion, match=r"ask for it with elicit\.secret"):
        asked_as(name)


@pytest.mark.parametrize("name", NO_SECRETS)
def test_field_name_merely_resembling_a_secret_is_allowed(name: str) -> None:
    asked_as(name)


@pytest.mark.parametrize(
    "title",
    ["Your password", "Password (again)", "The card's PIN:", "API key", "Access-Token", "Secret 2"],
)
def test_field_titled_like_a_secret_is_refused(title: str) -> None:
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
def test_title_merely_resembling_a_secret_is_allowed(title: str) -> None:
    asked_as("response", title=title)


@pytest.mark.parametrize("message", QUESTIONS_FOR_SECRETS)
def test_message_asking_for_a_secret_is_refused(message: str) -> None:
    with pytest.raises(InvalidQuestion, match=r"elicit\.secret"):
        _ = elicit.form(message)


@pytest.mark.parametrize("message", OTHER_QUESTIONS)
def test_message_merely_resembling_a_request_for_a_secret_is_allowed(message: str) -> None:
    _ = elicit.form(message)


def test_error_for_wrongly_refused_field_names_a_working_alternative() -> None:
    with pytest.raises(InvalidQuestion, match="another name and title, or choices"):
        asked_as("credit_card", title="Which of your cards?")
    asked_as("which_card", title="Which of your cards?")
    asked_as("credit_card", enum=["the blue one", "the red one"])
    with pytest.raises(InvalidQuestion, match="a schema with one field whose name says"):
        _ = elicit.form("The password was leaked. Whom shall I tell?")
    person: dict[str, Json] = {"type": "object", "properties": {"whom": {"type": "string"}}}
    _ = elicit.form("The password was leaked. Whom shall I tell?", person)


def test_choices_checkboxes_and_numbers_are_allowed_except_pin() -> None:
    asked_as("reset_password", type="boolean")
    asked_as("token", type="string", enum=["short", "long"])
    asked_as("tokens", type="integer")
    asked_as("pass", type="integer")
    asked_as("pan", type="number")
    with pytest.raises(InvalidQuestion):
        asked_as("pin", type="integer")
