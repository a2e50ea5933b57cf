"""`python -m tests.doors`: write the section of docs/reference/threat-table.md."""

from tests.doors.document import DOCUMENT, document

if __name__ == "__main__":
    DOCUMENT.write_text(document(), "utf-8")
