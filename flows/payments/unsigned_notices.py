"""Mollie's older webhooks: notices that nothing signs, of which only an id is read.

What could go wrong: anybody can send one. So it makes no Delivery and tells nothing but where to
look: whoever reads an id asks the provider about it, and only if we made it.
"""

import re
from typing import Final
from urllib.parse import parse_qsl

from flows.errors import Unverified

NOTICE_BYTES_AT_MOST: Final = 1024
MOLLIE_PAYMENT_ID: Final = re.compile(r"tr_[0-9A-Za-z]{1,64}")

_FIELDS_AT_MOST = 8


def read_id(body: bytes) -> str:
    """The one id in a form's body.

    Raises Unverified, with the reason too_large or malformed_body.
    """
    if len(body) > NOTICE_BYTES_AT_MOST:
        raise Unverified("too_large")
    try:
        fields = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, max_num_fields=_FIELDS_AT_MOST
        )
    except ValueError:
        raise Unverified("malformed_body") from None
    ids = [value for name, value in fields if name == "id"]
    if len(ids) != 1 or not MOLLIE_PAYMENT_ID.fullmatch(ids[0]):
        raise Unverified("malformed_body")
    return ids[0]
