"""The views of the operator's pages, each with its template.

Leave out every field that the template does not show: a value that is not here cannot leak.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Literal

from webapp.pages.views import View
from webapp.pages.views_openers import Paging

Act = Literal["cancel", "refund", "replay", "resend"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A value with its label: a text, or a time. `url` is the page of the thing that it names."""

    label: str
    text: str = ""
    at: datetime | None = None
    url: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLine:
    """An entry of a list. `url` leads to its page, if it has one."""

    title: str
    status: str
    facts: tuple[Fact, ...]
    url: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterField:
    """A field of the filter form, with its current value."""

    name: str
    label: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorView(View):
    """The fields of every page for operators. `tab` is the current list, if any."""

    is_translated: ClassVar[bool] = False
    operator: str
    now: datetime
    search_csrf: str
    tab: str = ""
    tabs: tuple[tuple[str, str], ...] = ()
    sought: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorList(OperatorView):
    """A list of records. `quick` are links to common filters; `notice` says if rows are missing.

    `wrong` says which filter of the address is invalid, so that nothing is listed.
    """

    template: ClassVar[str] = "operator_list.html"
    title: str
    lines: tuple[RecordLine, ...]
    quick: tuple[tuple[str, str, bool], ...]
    fields: tuple[FilterField, ...]
    csv_url: str
    paging: Paging
    notice: str | None = None
    wrong: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRecord(OperatorView):
    """A record: its facts, stages, timeline, log lines, and what can be done.

    `acts` are the names and addresses of what can be done. `payload` is a webhook's body. A search
    that finds several records has `links`, and one that finds nothing has `says`.
    """

    template: ClassVar[str] = "operator_record.html"
    title: str
    facts: tuple[Fact, ...] = ()
    stages: tuple[Fact, ...] = ()
    timeline: tuple[Fact, ...] = ()
    links: tuple[Fact, ...] = ()
    log_lines: tuple[str, ...] = ()
    acts: tuple[tuple[Act, str], ...] = ()
    payload: str | None = None
    says: str | None = None
    shows_log: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorAct(OperatorView):
    """The page that asks an operator to confirm a change. Its form, at `action`, makes it.

    `is_spent`: a call has used the payment, so that a refund has to be confirmed once more. `fault`
    says why the change was not made.
    """

    template: ClassVar[str] = "operator_act.html"
    change: Act
    title: str
    facts: tuple[Fact, ...]
    action: str
    csrf: str
    back: str
    is_spent: bool = False
    fault: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorEnter(View):
    """The page of a one-time link, which asks to open the operator's pages in this browser."""

    template: ClassVar[str] = "operator_enter.html"
    is_translated: ClassVar[bool] = False
    action: str
    csrf: str
