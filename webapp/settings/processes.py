"""The settings of several processes on one store: their names, and where they reach each other."""

from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir

from webapp.settings.parsers import matching
from webapp.settings.table import setting


def _absolute(text: str) -> Path | None:
    path = Path(text)
    return path if path.is_absolute() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """The settings of one process. `runtime` is None without such a folder of the user."""

    instance: str = setting(
        "ELICIT_INSTANCE",
        parse=matching(
            r"(?:[a-z0-9][a-z0-9-]{0,31})?",
            "is not a valid instance name: up to 32 lower-case letters, digits and hyphens.",
        ),
        says="the name by which a proxy routes to this instance, if several machines or processes "
        "serve one store: such as `a`. Session ids end with it (docs/how-to/deployment.md)",
    )
    runtime: Path | None = setting(
        "XDG_RUNTIME_DIR",
        parse=_absolute,
        otherwise="the folder for temporary files",
        says="the folder for the sockets between the processes of one server on a machine; only "
        "their user can enter it",
        names_file=True,
    )

    def folder(self, uid: int) -> Path:
        """Return the folder for the sockets of all servers of this user."""
        return (self.runtime or Path(gettempdir())) / f"elicit-{uid}"
