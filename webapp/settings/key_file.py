"""The key file of a local server: its secrets, newest first, shared by running processes.

Risks: two processes rotate at once and one secret is lost, with all data sealed under it. A crash
leaves half a file. A running process lacks a new secret. The file is therefore changed under a lock
and replaced as a unit, and each ring checks the file for changes before each use. A second file
lists the stores that were opened with the key file, because each store may need its secrets.
"""

import fcntl
import json
import logging
import os
import re
import secrets
import stat
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from dataclasses import replace as changed
from datetime import datetime
from pathlib import Path
from pwd import getpwuid
from typing import BinaryIO

import msgspec

from flows.crypto.tokens import SECRET_BYTES, Ring, fingerprint_of
from flows.errors import StoreUnavailable, WeakSecret
from webapp.settings.table import Setting
from webapp.stores import without_password
from webapp.stores.sqlite_file import check_status, must_be_private

_HEADER = (
    b"# The secrets of elicit, newest first. After an older secret comes the time at which a newer "
    b"one replaced it.\n"
)
DATA_HOME = Setting(
    name="XDG_DATA_HOME",
    parse=Path,
    default="~/.local/share",
    says="the folder that contains the data folder `elicit-url`. `~` is your home folder (`HOME`)",
    names_file=True,
)
CONFIG_HOME = Setting(
    name="XDG_CONFIG_HOME",
    parse=Path,
    default="~/.config",
    says="where the configuration folder `elicit-url` is",
    names_file=True,
)
_PLAIN = re.compile(rb"(?!hex:|#)[\x21-\x7e]+")
_NEW_SECRET_BYTES = 48
_log = logging.getLogger(__name__)

_Seen = tuple[int, int, int]
_NOTHING: _Seen = (0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretSetting:
    """A secret in the key file.

    `ceased_at` is the time at which a newer secret replaced this one, or None: this secret is the
    newest, or the time is unknown.
    """

    value: bytes = field(repr=False)
    ceased_at: datetime | None = None

    @property
    def fingerprint(self) -> bytes:
        return fingerprint_of(self.value)


def new_secret() -> bytes:
    return secrets.token_urlsafe(_NEW_SECRET_BYTES).encode()


def data_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder that contains the key file and the default SQLite store."""
    return folder_of(environment, DATA_HOME)


def folder_of(environment: Mapping[str, str], row: Setting[Path]) -> Path:
    """Return a folder of the user. A relative path counts as unset (XDG Base Directory, 0.8)."""
    base = Path(environment.get(row.name, ""))
    if not base.is_absolute():
        home = Path(environment.get("HOME", ""))
        home = home if home.is_absolute() else Path(getpwuid(os.getuid()).pw_dir)
        base = home / row.default.removeprefix("~/")
    return base / "elicit-url"


class KeyFile:
    """The key file. Methods raise OSError for an unusable file, WeakSecret for a bad secret."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes = path.with_name(f"{path.name}.stores")  # the list of stores

    def ring(self, *, is_needed: Callable[[str], bool] | None = None, store: str = "") -> Ring:
        """Return a keyring that rereads the file when it changes. Create the file if it is missing.

        A missing file is not created if the current store or a listed store may need its secrets,
        because a new secret could not decrypt the records of that store.

        Raises:
            OSError: `is_needed` returns True for one of these stores, or a listed store cannot be
                read. If the current store cannot be read, the error of `is_needed` is raised.
        """
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        must_be_private(self.path)
        if not self.path.exists():
            if is_needed is not None:
                self._must_be_unneeded(is_needed, store)
            with _draft(self.path, new_secret() + b"\n") as draft, suppress(FileExistsError):
                self.path.hardlink_to(draft)  # only one of several processes succeeds
        return _Followed(self).ring

    def _must_be_unneeded(self, is_needed: Callable[[str], bool], at_hand: str) -> None:
        for each in (at_hand, *self.stores()):
            try:
                if not each or not is_needed(each):
                    continue
                why = "contains data that only the secrets of that file decrypt"
            except (StoreUnavailable, ValueError) as error:
                if each == at_hand:
                    raise
                reason = error.why if isinstance(error, StoreUnavailable) else error
                why = f"cannot be read ({reason}), so it could need the secrets of that file"
            also = f" (or remove it from {self.notes})" if each in self.stores() else ""
            raise OSError(
                f"the key file does not exist, and {without_password(each)} {why}. Restore the key "
                "file from a copy, or set ELICIT_SECRET to the content of the copy. To start with "
                f"an empty store, move that store away{also}"
            )

    def read(self) -> tuple[SecretSetting, ...]:
        return self._read()[0]

    def put_in_front(self, secret: bytes, *, before: bytes, now: datetime) -> bool:
        """Make this secret the newest.

        Change nothing and return False if `before` is not the fingerprint of the newest secret.
        """
        with self._locked():
            newest, *others = self.read()
            if newest.fingerprint != before:
                return False
            found = [SecretSetting(value=secret), changed(newest, ceased_at=now), *others]
            _replace(self.path, _encode(found))
            return True

    def take_out(self, fingerprint: bytes) -> None:
        """Remove a secret permanently, unless it is the newest."""
        with self._locked():
            newest, *others = self.read()
            found = [newest, *(s for s in others if s.fingerprint != fingerprint)]
            _replace(self.path, _encode(found))

    def note(self, store: str) -> None:
        """Add the address of a store to the list, once."""
        if store in self.stores():
            return
        with self._locked():
            found = self.stores()
            if store not in found:
                lines = json.dumps([*found, store], indent=1).encode() + b"\n"
                _replace(self.notes, lines)

    def stores(self) -> tuple[str, ...]:
        """Return the addresses of the stores in the list."""
        try:
            with _opened(self.notes) as file:
                return msgspec.convert(json.loads(file.read()), tuple[str, ...])
        except FileNotFoundError:
            return ()
        except (ValueError, msgspec.ValidationError) as error:
            damaged = f"{self.notes} is damaged. Remove it, then start the server with each store"
            raise OSError(damaged) from error

    def seen(self) -> _Seen:
        """Return a value that changes whenever the file changes."""
        return _identity(self.path.stat())

    def _read(self) -> tuple[tuple[SecretSetting, ...], _Seen]:
        with _opened(self.path) as file:
            status = os.fstat(file.fileno())
            check_status(self.path, status)
            content = file.read()
        found = _decode(content)
        Ring([secret.value for secret in found])  # raises WeakSecret for a weak one
        return found, _identity(status)

    def follow(self, known: Sequence[bytes]) -> tuple[Sequence[bytes] | None, _Seen]:
        """Return the secrets and the file's state.

        The secrets are None if the file no longer has any of the known secrets.
        """
        found, seen = self._read()
        values = [secret.value for secret in found]
        is_same_ring = not known or not set(known).isdisjoint(values)
        return (values if is_same_ring else None), seen

    @contextmanager
    def _locked(self) -> Generator[None]:
        """Lock the file. If it was replaced while this process waited, lock the new file."""
        while True:
            with _opened(self.path) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                if os.path.samestat(os.fstat(file.fileno()), self.path.stat()):
                    yield
                    return


class _Followed:
    """A ring, and the state of the file when its secrets were read."""

    def __init__(self, file: KeyFile) -> None:
        self._file = file
        values, self._seen = file.follow(())
        self._values = values or ()
        self.ring = Ring(self._values, reread=self._reread)

    def _reread(self) -> Sequence[bytes] | None:
        """Return the secrets if they changed. Return None if not, or if the file is unusable."""
        seen = _NOTHING
        try:
            seen = self._file.seen()
            if seen == self._seen:
                return None
            values, seen = self._file.follow(self._values)
        except (OSError, WeakSecret) as error:
            if seen != self._seen:
                _log.warning("key_file.unusable", extra={"why": str(error)})
            values = None
        else:
            if values is None:
                _log.warning("key_file.foreign", extra={"path": str(self._file.path)})
        self._seen = seen
        self._values = values or self._values
        return values


def _opened(path: Path) -> BinaryIO:
    """Open a regular file to read. Refuse pipes and devices, which could block."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is not a file; move it away")
    return os.fdopen(descriptor, "rb")


def _identity(status: os.stat_result) -> _Seen:
    return status.st_ino, status.st_mtime_ns, status.st_size


def _decode(content: bytes) -> tuple[SecretSetting, ...]:
    """Parse the file. If it has no header, its whole content is one secret (former format)."""
    if not content.startswith(b"# "):
        return (SecretSetting(value=content.strip()),)
    found: list[SecretSetting] = []
    for number, line in enumerate(content.split(b"\n"), 1):
        if line.startswith(b"#") or not line.strip():
            continue
        text, _, moment = line.strip().partition(b" ")
        try:
            is_hex = text.startswith(b"hex:")
            value = bytes.fromhex(text[4:].decode()) if is_hex else text
            ceased_at = datetime.fromisoformat(moment.decode()) if moment else None
        except ValueError:
            ceased_at, value = None, b""
        if len(value) < SECRET_BYTES or (ceased_at is not None and ceased_at.tzinfo is None):
            raise WeakSecret(f"line {number} is not a secret of at least {SECRET_BYTES} bytes")
        found.append(SecretSetting(value=value, ceased_at=ceased_at))
    return tuple(found)


def _encode(found: Sequence[SecretSetting]) -> bytes:
    return _HEADER + b"".join(
        (s.value if _PLAIN.fullmatch(s.value) else b"hex:" + s.value.hex().encode())
        + (b" " + s.ceased_at.isoformat().encode() if s.ceased_at is not None else b"")
        + b"\n"
        for s in found
    )


@contextmanager
def _draft(path: Path, content: bytes) -> Generator[Path]:
    """Write the content durably to a temporary file, so that no process reads half a key."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield draft
    finally:
        draft.unlink(missing_ok=True)


def _replace(path: Path, content: bytes) -> None:
    with _draft(path, content) as draft:
        draft.replace(path)
    _settle(path.parent)


def _settle(folder: Path) -> None:
    """Sync the folder, so that a power cut cannot undo the renaming of a file."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
