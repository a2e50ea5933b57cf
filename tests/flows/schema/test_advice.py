"""Types that pydantic supports and a form cannot show: the error says what to write instead."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, make_dataclass
from datetime import datetime, time
from enum import Enum, Flag, IntEnum, StrEnum
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID

import pytest
from pydantic import (
    AliasPath,
    Base64Str,
    BaseModel,
    Field,
    Json,
    NaiveDatetime,
    PlainValidator,
    RootModel,
    create_model,
)
from typing_extensions import TypedDict

from flows.errors import InvalidSchema
from flows.schema.schema import schema_of, with_secrets

new_model: Any = create_model
new_typed_dict: Any = TypedDict
USE = "use str, int, float, bool, Decimal, date, datetime, Literal[...] or an Enum"
CHOOSE = "use list[Literal[...]] or a list of an Enum, so that the person can choose"


class Size(Enum):
    SMALL = "small"


class Level(IntEnum):
    LOW = 1


class Mixed(Enum):
    TEXT = "text"
    NUMBER = 1


class Empty(Enum):
    pass


class Rights(Flag):
    READ = 1


class Name(StrEnum):
    ADA = "Ada"


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


class Street(NamedTuple):
    name: str


class House(TypedDict):
    number: int


@dataclass
class Room:
    number: int


class Plain:
    pass


TEXTS = "each choice must be a text: write "
MEMBERS = "the value of each member must be a text, as in "
FLAT = "a form is flat: "
NOT = "cannot be asked as a form"
ADVICE: dict[Any, str] = {
    Literal[1, 2, 4]: f"`Literal[1, 2, 4]` {NOT}: {TEXTS}Literal['1', '2', '4']",
    Literal["a", 1]: f"{TEXTS}Literal['a', '1']",
    Literal["a", None]: f"{TEXTS}Literal['a'] | None",  # noqa: PYI061 - as authors write it
    Literal[True, False]: "use bool",
    Literal[b"a"]: f"{TEXTS}Literal['a']",
    Literal[Size.SMALL]: f"{TEXTS}Literal['small']",
    Literal[1, 2] | None: f"{TEXTS}Literal['1', '2']",
    Level: f"`Level` {NOT}: {MEMBERS}LOW = 'low'",
    Level | None: f"{MEMBERS}LOW = 'low'",
    Mixed: f"{MEMBERS}NUMBER = 'number'",
    Empty: "Empty has no members",
    Rights: CHOOSE,
    list[Level]: f"{MEMBERS}LOW = 'low'",
    list[Literal["a", None]]: f"{TEXTS}Literal['a'].",  # noqa: PYI061 - as authors write it
    tuple[Size, Size]: f"{FLAT}use one field for each part",
    list[list[str]]: CHOOSE,
    Sequence[str]: CHOOSE,
    Iterable[str]: CHOOSE,
    dict: f"{FLAT}use one field for each key",
    Mapping[str, int]: f"{FLAT}use one field for each key",
    Street: f"{FLAT}write the fields of Street into the model itself",
    House: f"{FLAT}write the fields of House into the model itself",
    Room: f"{FLAT}write the fields of Room into the model itself",
    Cat | None: f"{FLAT}write the fields of Cat into the model itself",
    Cat | Dog: "ask which of them first, and then ask for its fields in a second form",
    RootModel[list[str]]: CHOOSE,
    Size | str: "a field has one type, with or without `| None`",
    Literal["auto"] | int: "a field has one type, with or without `| None`",
    None: USE,
    bytes: USE,
    time: USE,
    UUID: USE,
    Path: USE,
    IPv4Address: USE,
    type: USE,
    Callable[[], int]: f"`Callable[[], int]` {NOT}: {USE}",
    NaiveDatetime: "use datetime or AwareDatetime, because a form sends times in UTC",
    Annotated[NaiveDatetime | None, Field()]: "use datetime or AwareDatetime",
    Annotated[Cat | Dog, Field(discriminator="kind")]: "ask which of them first",
    Annotated[str, Field(alias="na%me")]: "Model.x: `str` cannot be asked as a form: a name has",
    Annotated[list[str], Field(alias="names")]: f"`list[str]` {NOT}: {CHOOSE}",
    Annotated[str, Field(validation_alias=AliasPath("names", 0))]: "an AliasPath cannot",
    Annotated[int, PlainValidator(int)]: "perhaps because of a PlainValidator",
    Json[int]: "a form does not support the keyword 'contentMediaType'",
    Base64Str: "'base64' is not one of",
}


@pytest.mark.parametrize("hint", ADVICE, ids=str)
def test_error_for_unsupported_type_says_what_to_write(hint: Any) -> None:
    with pytest.raises(InvalidSchema) as refused:
        schema_of(new_model("Model", x=(hint, ...)))
    assert ADVICE[hint] in str(refused.value)
    assert str(refused.value).startswith("Model.x: ")
    assert not any(word in str(refused.value) for word in ("$.", "anyOf", "const", "core_schema"))


@pytest.mark.parametrize("hint", [Literal[Name.ADA], Size | None, set[Size], datetime])
def test_type_that_a_form_can_show_is_asked(hint: Any) -> None:
    assert [field.name for field in schema_of(new_model("Model", x=(hint, ...))).fields] == ["x"]


@pytest.mark.parametrize("hint", [Literal[Size.SMALL], Level, NaiveDatetime])
def test_error_names_field_of_dataclass_and_typed_dict(hint: Any) -> None:
    for made in (make_dataclass("Model", [("x", hint)]), new_typed_dict("Model", {"x": hint})):
        with pytest.raises(InvalidSchema, match=r"^Model\.x: "):
            schema_of(made)


def test_class_without_fields_is_no_model() -> None:
    with pytest.raises(InvalidSchema, match="Plain cannot be asked as a form: it is no pydantic"):
        schema_of(Plain)


def test_error_names_a_type_that_is_not_defined() -> None:
    with pytest.raises(InvalidSchema, match="Nowhere is not defined where the model is"):
        schema_of(new_model("Model", x=("Nowhere", ...)))


def test_error_for_the_default_of_a_secret_names_the_field() -> None:
    asked = schema_of(new_model("Model", token=(str, "sesame")))
    with pytest.raises(InvalidSchema, match="The field 'token' is a secret, so it has no default"):
        with_secrets(asked)
