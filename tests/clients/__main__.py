"""`python -m tests.clients`: play all clients, write the table of docs/reference/clients.md."""

import logging

from tests.clients.document import DOCUMENT, document

if __name__ == "__main__":
    logging.disable()  # the libraries'
    DOCUMENT.write_text(document(), "utf-8")
