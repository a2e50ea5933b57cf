"""A plugin that logs each question and its outcome as a line of JSON.

elicit serve my_tools:mcp --plugin audit_log:audit_log
"""

import json
import sys
from datetime import datetime
from typing import TextIO

from flows.hooks import HookFacts, SettledQuestion, StartedQuestion, after


class AuditLog:
    def __init__(self, out: TextIO) -> None:
        self._out = out

    @after("start")
    def asked(self, question: StartedQuestion) -> None:
        self._write("asked", question, id=question.id, at=question.asked_at)

    @after("settle")
    def settled(self, question: SettledQuestion) -> None:
        about = {"id": question.id, "status": question.status, "by": question.by}
        self._write("settled", question, at=question.settled_at, **about)

    def _write(self, event: str, question: HookFacts, *, at: datetime, **about: str | None) -> None:
        line = {"event": event, "at": at.isoformat(), "owner": question.owner, **about}
        line |= {"kind": question.kind, "tool": question.tool}
        self._out.write(json.dumps(line) + "\n")


audit_log = AuditLog(sys.stderr)
