"""A plugin that logs only the questions to administrators, who are named by their tags.

ADMINS=... elicit serve my_tools:mcp --plugin admin_filter:admin_audit

`elicit pending list` shows the tag of the person who is asked, as owner.
"""

import logging
import os

from flows.hooks import HookFacts, StartedQuestion, after

ADMINS = set(os.environ.get("ADMINS", "").split())
log = logging.getLogger("admins")


def is_admins(question: HookFacts) -> bool:
    return question.owner in ADMINS


class AdminAudit:
    @after("start", when=is_admins)
    def note(self, question: StartedQuestion) -> None:
        log.warning("An administrator is asked by %s: %s", question.tool, question.id)


admin_audit = AdminAudit()
