"""A form on a page: the controls of a schema, the typed values and the faults.

Risks: a secret that the page sends back after a fault stays in the browser's history and caches. So
a secret field never has a value here, even if the caller passes one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from flows.schema.schema import Fault, Field, Schema, strings_of

Control: TypeAlias = Literal["input", "textarea", "checkbox", "select", "checkboxes"]
_TYPES: Mapping[str | None, str] = {"email": "email", "uri": "url", "date": "date"}
# A form without script knows no time zone, so the help text names one.
_MOMENT_HELP = "In UTC, like 2031-05-28 14:30."
_LINES_HELP = "This field does not hide what you type: check that nobody else sees your screen."


@dataclass(frozen=True, slots=True, kw_only=True)
class FormChoice:
    """A choice of a list. The form sends the choice's number."""

    value: str
    label: str
    is_chosen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FormField:
    """A control with its label. `value` is empty for a secret.

    `is_lines`: the field is for several lines. Any other text area starts with one line and grows.
    `may_have_lines`: a secret that is typed on one line, but can be pasted with more.
    """

    id: str
    name: str
    label: str
    control: Control
    is_required: bool
    is_secret: bool
    type: str = "text"
    inputmode: str | None = None
    help: str | None = None
    value: str = ""
    is_lines: bool = False
    may_have_lines: bool = False
    is_ticked: bool = False
    choices: tuple[FormChoice, ...] = ()
    fault: str | None = None

    @property
    def described_by(self) -> str:
        """The ids of the texts that describe the field, for `aria-describedby`."""
        parts = (f"{self.id}-fault" if self.fault else "", f"{self.id}-help" if self.help else "")
        return " ".join(part for part in parts if part)

    @property
    def focus_id(self) -> str:
        """The id of the element to focus first."""
        return f"{self.id}-0" if self.control == "checkboxes" else self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class PageForm:
    """The controls of a form. `faults` are those that belong to no single control."""

    fields: tuple[FormField, ...]
    faults: tuple[str, ...] = ()

    @property
    def has_faults(self) -> bool:
        return bool(self.faults) or any(field.fault for field in self.fields)


def form_of(
    schema: Schema[Any],
    *,
    values: Mapping[str, Sequence[str]] | None = None,
    faults: Sequence[Fault] = (),
) -> PageForm:
    """Return the form of a schema with the submitted `values`, or with the schema's defaults."""
    if values is None:
        defaults = {f.name: f.default for f in schema.fields if f.default is not None}
        values = strings_of(schema, defaults)
    messages = {fault.path: fault.message for fault in reversed(faults)}
    names = {field.name for field in schema.fields}
    return PageForm(
        fields=tuple(
            _field(field, number, values.get(field.input_name, ()), messages.get(field.name))
            for number, field in enumerate(schema.fields, 1)
        ),
        faults=tuple(fault.message for fault in faults if fault.path not in names),
    )


def _field(field: Field, number: int, given: Sequence[str], fault: str | None) -> FormField:
    is_moment = field.limits.format == "date-time"
    numeric = {"integer": "numeric", "number": "decimal"}.get(field.kind)
    if field.kind == "integer" and (field.limits.least is None or field.limits.least < 0):
        numeric = None  # the numeric keyboard of some phones has no minus
    control = _control(field)
    is_seen = field.is_secret and control == "textarea"
    notes = (_MOMENT_HELP if is_moment else "", _LINES_HELP if is_seen else "")
    help_texts = [field.description or "", *notes]
    return FormField(
        id=f"answer-{number}",
        name=field.input_name,
        label=field.title,
        control=control,
        # A required checkbox can stay unticked, which means no.
        is_required=field.is_required and field.kind != "boolean",
        is_secret=field.is_secret,
        type="password" if field.is_secret else _TYPES.get(field.limits.format, "text"),
        inputmode=numeric,
        help=" ".join(text for text in help_texts if text) or None,
        value="" if field.is_secret or not given else given[0],
        is_lines=field.is_lines,
        may_have_lines=field.is_secret and field.is_multiline and not is_seen,
        is_ticked=field.kind == "boolean" and any(given),
        choices=tuple(
            FormChoice(value=str(place), label=choice.title, is_chosen=str(place) in given)
            for place, choice in enumerate(field.choices)
        ),
        fault=fault,
    )


def _control(field: Field) -> Control:
    match field.kind:
        case "boolean":
            return "checkbox"
        case "choice":
            return "select"
        case "choices":
            return "checkboxes"
        case _:
            # No browser hides the text of a text area, and screen readers read it aloud.
            is_area = field.limits.format == "multiline" if field.is_secret else field.is_multiline
            return "textarea" if is_area else "input"
