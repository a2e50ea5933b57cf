"""`python -m tests.doors`: write docs/reference/doors.md."""

from tests.doors.document import DOCUMENT, document

if __name__ == "__main__":
    DOCUMENT.write_text(document(), "utf-8")
