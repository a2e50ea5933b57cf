"""The tree of errors is what its docstring draws."""

import re

import pytest

from flows import errors
from flows.errors import ElicitError, Expired, InvalidQuestion, NotPossible, WeakSecret

DRAWN = re.compile(r"^([│ ├└─]*)(\w+)(?:  +\S.*)?$")


def drawn() -> dict[str, str | None]:
    """Each class in the docstring's tree and the one above it."""
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


def test_the_tree_in_the_docstring_is_the_real_one() -> None:
    assert drawn() == real()


@pytest.mark.parametrize("name", sorted(real()))
def test_every_error_says_what_it_is_to_programs(name: str) -> None:
    error = getattr(errors, name)
    assert re.fullmatch(r"[A-Z_]+", error.name)
    assert isinstance(error.code, int)
    assert error.code < 0
    assert 400 <= error.http_status <= 599
    assert error.__doc__


def test_no_two_errors_have_one_name() -> None:
    # A question and an answer that do not fit have one name: FrontMCP's for both.
    others = [name for name in real() if name not in ("NotAccepted", "InvalidAnswer")]
    names = [getattr(errors, name).name for name in others]
    assert len(set(names)) == len(names)


def test_wrong_arguments_are_value_errors_too() -> None:
    assert issubclass(InvalidQuestion, ValueError)
    assert issubclass(WeakSecret, ValueError)


def test_an_error_carries_its_facts() -> None:
    refused = NotPossible(status="accepted", wanted="declined")
    assert (refused.status, refused.wanted) == ("accepted", "declined")
    assert "accepted" in str(refused)
    assert Expired("Nobody answered.", elicitation_id="e-1").elicitation_id == "e-1"
