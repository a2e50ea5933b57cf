"""The exception classes match the tree in the docstring of flows/errors.py."""

import re

import pytest

from flows import errors
from flows.elicitation.states import Status
from flows.errors import ElicitError, Expired, InvalidQuestion, NotPossible, WeakSecret
from flows.payments.receipt import ReceiptStatus

DRAWN = re.compile(r"^([│ ├└─]*)(\w+)(?:  +\S.*)?$")


def drawn() -> dict[str, str | None]:
    """Return the classes in the docstring's tree, each with its parent class."""
    assert errors.__doc__ is not None
    above: dict[str, str | None] = {}
    path: list[str] = []
    for line in errors.__doc__.splitlines():
        match = DRAWN.match(line)
        if match is None or not (match[1] or match[2] == "ElicitError"):
            continue
        depth = len(match[1]) // 4
        above[match[2]] = path[depth - 1] if depth else None
        path[depth:] = [match[2]]
    return above


def real() -> dict[str, str | None]:
    classes = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, Exception)
    ]
    return {
        each.__name__: each.__bases__[0].__name__ if each is not ElicitError else None
        for each in classes
    }


def test_error_tree_in_docstring_matches_classes() -> None:
    assert drawn() == real()


@pytest.mark.parametrize("name", sorted(real()))
def test_every_error_has_name_codes_and_docstring(name: str) -> None:
    error = getattr(errors, name)
    assert re.fullmatch(r"[A-Z_]+", error.name)
    assert error.jsonrpc_code < 0
    # finding: XQ10
    assert error.code == error.name  # problem details and tool results contain this code
    assert 400 <= error.http_status <= 599
    assert error.__doc__


def test_error_names_are_unique() -> None:
    # An invalid question and an invalid answer share a name, which FrontMCP uses for both.
    others = [name for name in real() if name not in ("NotAccepted", "InvalidAnswer")]
    names = [getattr(errors, name).name for name in others]
    assert len(set(names)) == len(names)


def test_argument_errors_are_value_errors() -> None:
    assert issubclass(InvalidQuestion, ValueError)
    assert issubclass(WeakSecret, ValueError)


def test_error_carries_its_details() -> None:
    refused = NotPossible(status="accepted", wanted="declined")
    assert (refused.status, refused.wanted) == ("accepted", "declined")
    assert "accepted" in str(refused)
    assert Expired("Nobody answered.", elicitation_id="e-1").elicitation_id == "e-1"


HAPPENED = {
    **dict.fromkeys(("pending", "opened"), "The question is not answered yet"),
    "accepted": "The question was accepted already",
    "expired": "The question has expired",
    "superseded": "The question was replaced by a newer one",
    "taken": "A run uses the payment",
    "spent": "The payment was used already",
    "refunded": "The payment was refunded already",
}


@pytest.mark.parametrize(("status", "happened"), HAPPENED.items())
def test_refused_change_says_what_happened(status: str, happened: str) -> None:
    # finding: XQ10
    error = errors.NotPossible(status=status, wanted="accepted")
    assert str(error) == f"{happened}, so it cannot be accepted now."


def test_every_status_has_a_refusal_sentence() -> None:
    # finding: XQ10
    for status in (*Status, *ReceiptStatus):
        words = str(errors.NotPossible(status=status, wanted=Status.EXCHANGING))
        assert words.startswith(("The question ", "The payment ", "A run "))
        assert words.endswith("so it cannot be finished now.")


def test_error_has_the_code_that_json_rpc_reserves_for_its_cause() -> None:
    invalid_params, internal_error = -32602, -32603
    assert errors.InvalidQuestion.jsonrpc_code == invalid_params
    assert errors.InvalidAnswer.jsonrpc_code == invalid_params
    assert errors.InvalidSchema.jsonrpc_code == internal_error
