"""A form on a page: the controls of a schema, the typed values and the faults.

Risks: a secret that the page sends back after a fault stays in the browser's history and caches. So
a secret field never has a value here, even if the caller passes one. Without a time zone, a date
and time could mean another moment for the tool than for the person. So the person chooses the zone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from functools import cache
from typing import Any, Final, Literal, TypeAlias
from zoneinfo import ZoneInfo, available_timezones

from flows.schema.schema import Fault, Field, Schema, strings_of

Control: TypeAlias = Literal["input", "textarea", "checkbox", "select", "checkboxes"]
_TYPES: Mapping[str | None, str] = {
    "email": "email",
    "uri": "url",
    "date": "date",
    "date-time": "datetime-local",
}
# A choice for browsers without JavaScript. The script adds the browser's own zone.
_ZONES: Final = (
    *("UTC", "Africa/Cairo", "Africa/Johannesburg", "Africa/Lagos", "Africa/Nairobi"),
    *("America/Anchorage", "America/Argentina/Buenos_Aires", "America/Bogota", "America/Caracas"),
    *("America/Chicago", "America/Denver", "America/Halifax", "America/Los_Angeles"),
    *("America/Mexico_City", "America/New_York", "America/Phoenix", "America/Sao_Paulo"),
    *("America/St_Johns", "Asia/Bangkok", "Asia/Dhaka", "Asia/Dubai", "Asia/Hong_Kong"),
    *("Asia/Jakarta", "Asia/Jerusalem", "Asia/Karachi", "Asia/Kathmandu", "Asia/Kolkata"),
    *("Asia/Manila", "Asia/Riyadh", "Asia/Seoul", "Asia/Shanghai", "Asia/Singapore"),
    *("Asia/Tashkent", "Asia/Tehran", "Asia/Tokyo", "Asia/Yangon", "Atlantic/Azores"),
    *("Australia/Adelaide", "Australia/Brisbane", "Australia/Perth", "Australia/Sydney"),
    *("Europe/Athens", "Europe/Berlin", "Europe/Istanbul", "Europe/Kyiv", "Europe/Lisbon"),
    *("Europe/London", "Europe/Madrid", "Europe/Moscow", "Europe/Paris", "Pacific/Auckland"),
    *("Pacific/Honolulu",),
)
_LINES_HELP = "This field does not hide what you type: check that nobody else sees your screen."


@dataclass(frozen=True, slots=True, kw_only=True)
class FormChoice:
    """A choice of a list. The form sends `value`: the choice's number, or a time zone's name."""

    value: str
    label: str
    is_chosen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FormField:
    """A control with its label. `value` is empty for a secret.

    `may_have_lines`: a secret that is typed on one line, but can be pasted with more.
    `autocomplete`: the token with which browsers fill the field. `zones` are the time zones to
    choose for a date and time, and `zone_name` is the name of that control.
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
    autocomplete: str = "on"
    zones: tuple[FormChoice, ...] = ()
    zone_name: str | None = None
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
        # `strings_of` writes default times in UTC.
        utc = {_zone_name(f): ["UTC"] for f in schema.fields if f.name in defaults}
        values = {**values, **utc}
    messages = {fault.path: fault.message for fault in reversed(faults)}
    names = {field.name for field in schema.fields}
    return PageForm(
        fields=tuple(
            _field(field, number, values, messages.get(field.name))
            for number, field in enumerate(schema.fields, 1)
        ),
        faults=tuple(fault.message for fault in faults if fault.path not in names),
    )


def with_zones(
    schema: Schema[Any], form: Mapping[str, Sequence[str]]
) -> tuple[Mapping[str, Sequence[str]], tuple[Fault, ...]]:
    """Return the form with the chosen zone in each date and time, and the faults of the zones."""
    changed: dict[str, Sequence[str]] = {}
    faults: list[Fault] = []
    for field in schema.fields:
        given = form.get(field.input_name, ())
        if not _is_moment(field) or len(given) != 1:
            continue
        try:
            local = datetime.fromisoformat(given[0].strip())
        except ValueError:
            continue  # empty, or unreadable; `parse` reports an unreadable one
        if ":" not in given[0]:
            continue  # a date without a time; `parse` reports this too
        zone = _zone("".join(form.get(_zone_name(field), ())))
        if local.tzinfo is None and zone is None:
            faults.append(Fault(path=field.name, message="Choose the time zone."))
        elif local.tzinfo is None:
            when = local.replace(tzinfo=zone)
            if _is_skipped(when):
                message = "Clocks skip this time on that day. Write another one."
                faults.append(Fault(path=field.name, message=message))
            changed[field.input_name] = [when.isoformat()]
    return {**form, **changed}, tuple(faults)


def _is_skipped(when: datetime) -> bool:
    """Return True if clocks are set forward over this time."""
    try:
        return when.astimezone(UTC).astimezone(when.tzinfo).replace(tzinfo=None) != when.replace(
            tzinfo=None
        )
    except OverflowError:  # a time in the year 1 or 9999
        return False


def _zone(name: str) -> tzinfo | None:
    """Return the time zone that the browser named, or None if the database has no such name."""
    if name == "UTC":
        return UTC
    return ZoneInfo(name) if name in _known_zones() else None


@cache
def _known_zones() -> frozenset[str]:
    return frozenset(available_timezones())


def _zones(chosen: str) -> tuple[FormChoice, ...]:
    own = (chosen,) if chosen in _known_zones() and chosen not in _ZONES else ()
    names = [name for name in (*own, *_ZONES) if name == "UTC" or name in _known_zones()]
    return tuple(
        FormChoice(value=name, label=name.replace("_", " "), is_chosen=name == chosen)
        for name in names
    )


def _is_moment(field: Field) -> bool:
    return field.kind == "string" and field.limits.format == "date-time"


def _zone_name(field: Field) -> str:
    return f"zone.{field.name}"


def _field(
    field: Field, number: int, values: Mapping[str, Sequence[str]], fault: str | None
) -> FormField:
    given, is_moment = values.get(field.input_name, ()), _is_moment(field)
    numeric = {"integer": "numeric", "number": "decimal"}.get(field.kind)
    if field.kind == "integer" and (field.limits.least is None or field.limits.least < 0):
        numeric = None  # the numeric keyboard of some phones has no minus
    value = "" if field.is_secret or not given else given[0]
    control = _control(field, value)
    is_seen = field.is_secret and control == "textarea"
    help_texts = [field.description or "", _LINES_HELP if is_seen else ""]
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
        value=value.replace(" ", "T").removesuffix(":00")
        if is_moment and len(value) == 19
        else value,
        autocomplete=field.autocomplete or "on",
        zones=_zones("".join(values.get(_zone_name(field), ()))) if is_moment else (),
        zone_name=_zone_name(field) if is_moment else None,
        may_have_lines=field.is_secret and field.is_multiline and not is_seen,
        is_ticked=field.kind == "boolean" and any(given),
        choices=tuple(
            FormChoice(value=str(place), label=choice.title, is_chosen=str(place) in given)
            for place, choice in enumerate(field.choices)
        ),
        fault=fault,
    )


def _control(field: Field, value: str) -> Control:
    match field.kind:
        case "boolean":
            return "checkbox"
        case "choice":
            return "select"
        case "choices":
            return "checkboxes"
        case _:
            # No browser hides the text of a text area, and screen readers read it aloud. An input
            # would join the lines of a text that has several.
            is_area = (
                field.limits.format == "multiline"
                if field.is_secret
                else (field.is_lines or "\n" in value.strip())
            )
            return "textarea" if is_area else "input"
