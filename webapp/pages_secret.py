"""The page on which a person types a secret."""

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from webapp.forms import Form
from webapp.views import View


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSecret(View):
    """Who asks, why, what becomes of it, the fields, and how to say no.

    With a `name` it is kept for the person; without, it is handed over once.
    """

    template: ClassVar[str] = "start_secret.html"
    host: str
    tool: str
    message: str
    form: Form
    asked_at: datetime
    now: datetime
    expires_at: datetime
    continue_action: str
    decline_action: str
    csrf: str
    client: str | None = None
    name: str | None = None
