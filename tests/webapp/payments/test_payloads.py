"""The body of a webhook as operators see it, with masked keys."""

import json

import pytest

from webapp.operations.rows import shown_body

TOKEN = f"{'A' * 50}.{'b' * 43}"


@pytest.mark.parametrize(
    ("body", "hidden"),
    [
        (json.dumps({"data": [{"client_secret": "pi_1_secret_x"}]}), "pi_1_secret_x"),
        (json.dumps({"nested": {"Access_Token": {"value": "abc123"}}}), "abc123"),
        (json.dumps({"note": "use pi_1_secret_abcdefgh now"}), "abcdefgh"),
        (json.dumps({"key": "sk_live_abcdefgh12"}), "live_abcdefgh12"),
        (json.dumps({"success_url": f"https://t.example/return?state={TOKEN}"}), TOKEN),
        ('{"client_secret": "cut off here', "cut off here"),
        ('{"a": {"apiKey": "with \\" quote"', "quote"),
        ("id=tr_1&access_token=abc123&b=c", "abc123"),
        (f"url=https://t.example/e/{TOKEN}", TOKEN),
    ],
)
def test_keys_and_tokens_of_a_payload_are_masked(body: str, hidden: str) -> None:
    shown = shown_body(body)
    assert hidden not in shown
    assert "***" in shown


@pytest.mark.parametrize("body", ["", "[" * 50_000, "{}", '{"id": "evt_1"}', "id=tr_1"])
def test_payload_without_keys_is_shown_unmasked(body: str) -> None:
    assert shown_body(body).replace(" ", "").replace("\n", "") == body.replace(" ", "")
