"""The ten subjects whose faults are drawn, each with its modules."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

HOUSE: Final = Path(__file__).parent.parent.parent
SUBJECTS: Final[Mapping[str, tuple[str, ...]]] = {
    "state machine": (
        "flows/elicitation/states.py",
        "flows/elicitation/attempt.py",
        "flows/elicitation/proof.py",
        "flows/elicitation/traits.py",
    ),
    "runs": (
        "flows/elicitation/run.py",
        "webapp/calls/run.py",
        "webapp/calls/once.py",
        "webapp/calls/delivery.py",
    ),
    "claims": ("webapp/calls/leases.py", "webapp/payments/checkouts.py"),
    "ledger": ("webapp/payments/ledger.py", "webapp/payments/payments.py"),
    "settlement": (
        "webapp/payments/checkouts.py",
        "flows/payments/events.py",
        "webapp/payments/events.py",
        "webapp/payments/refunds.py",
        "webapp/payments/unresolved.py",
        "webapp/payments/verification.py",
    ),
    "tokens": ("flows/crypto/tokens.py", "flows/oauth/access_token.py"),
    "vault": ("flows/crypto/vault.py", "webapp/records/*.py"),
    "identity": ("webapp/identity/*.py",),
    "signatures": ("flows/webhooks/*.py",),
    "gates": ("flows/kinds/gate.py", "webapp/kinds/gate.py"),
}


def modules_of(subject: str) -> list[str]:
    """Return the paths of the subject's modules, relative to the top of the tree."""
    return [
        path.relative_to(HOUSE).as_posix()
        for pattern in SUBJECTS[subject]
        for path in sorted(HOUSE.glob(pattern))
    ]
