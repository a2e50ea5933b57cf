"""The tool `elicitation_result`, with which a client that cannot elicit waits or gives up.

The tool continues the call that asked: the same tool with the same arguments, in the same run.

Risks: the model answers for the person, or continues another client's call. Only the client that
asked may use a question's id with this tool. The tool cannot accept a question; the person does
that on the page. The model may pass on a user code that the person reads on the page. It may answer
a plain form if the operator allows that (ELICIT_MODEL_ANSWERS).
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from flows.elicitation.run import Called, Run
from flows.elicitation.states import Elicitation, Json, checked_content
from flows.elicitation.traits import ByModel, traits_of
from flows.errors import ElicitError, InvalidAnswer, NotAllowed, NotPossible
from flows.schema.schema import Fault, check
from webapp.identity.identity import Caller
from webapp.identity.user_codes import TypedCode
from webapp.mcp.results import RESULT_TOOL, Result, error_result, text_result
from webapp.mcp.tools import with_version
from webapp.records.ids import owner_of
from webapp.service import Service

ACTIONS = ("wait", "decline", "cancel")
_UNKNOWN = "You have no question with this id, or the question has ended."
_NO_YES = (
    "You cannot answer for the person: action must be wait, decline or cancel. "
    "The person answers at the link that you showed them."
)
_CALL_AGAIN = "Call the tool that asked again, with the same arguments: it continues."
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GoOn:
    """The call to repeat in its run. `dismissed` is the id of a question to stop waiting for."""

    tool: str
    version: str | None
    arguments: Mapping[str, Any]
    run_id: str
    dismissed: str | None = None

    def within(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters `params`, changed so that they repeat this call."""
        own = {**params, "name": self.tool, "arguments": dict(self.arguments)}
        return with_version(own, self.version)


ResultOrGoOn: TypeAlias = Result | GoOn


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    asked: Elicitation
    run: Run
    called: Called


class ResultTool:
    def __init__(self, service: Service, *, server: str) -> None:
        self._service = service
        self._server = server

    @property
    def listed(self) -> dict[str, Any]:
        """The tool's entry in a list of tools."""
        properties: dict[str, Any] = {
            "elicitId": {"type": "string", "description": "From _meta.elicitationPending."},
            "action": {
                "type": "string",
                "enum": list(ACTIONS),
                "default": "wait",
                "description": (
                    "wait: wait for the person; the result can be that the tool is still waiting. "
                    "decline: the person declined. cancel: the tool ends; the link stays open for "
                    "a while."
                ),
            },
            "code": {
                "type": "string",
                "description": "The code of eight letters that the page shows, if it shows one.",
            },
        }
        if self._service.identity.lets_model_answer:
            properties["content"] = {
                "type": "object",
                "description": "The fields of a form, by the schema in _meta.elicitationPending.",
            }
        return {
            "name": RESULT_TOOL,
            "description": (
                "Continue a tool that waits for a person, after you have shown them its link: the "
                "result is that tool's own result. Never invent an answer: only the person can "
                "accept, at the link."
            ),
            "inputSchema": {
                "type": "object",
                "properties": properties,
                "required": ["elicitId"],
            },
        }

    async def call(
        self, arguments: object, *, caller: Caller, protocol_version: str
    ) -> ResultOrGoOn:
        """Return the result for the model, or the call that the middleware has to repeat."""
        given = cast("Mapping[str, object]", arguments if isinstance(arguments, Mapping) else {})
        try:
            found = await self._find(given.get("elicitId"), caller)
            if given.get("code") is not None:
                text = await self._pass_on(found.asked, given["code"])
                return text_result(text, protocol_version=protocol_version, is_error=False)
            return await self._go_on(found, given)
        except ElicitError as error:
            return error_result(error, protocol_version=protocol_version)

    def not_continuable(self, *, protocol_version: str) -> Result:
        """Return the error result for a call that cannot be continued.

        The tool's body is not started again.
        """
        return error_result(NotAllowed(_UNKNOWN), protocol_version=protocol_version)

    async def _find(self, id: object, caller: Caller) -> _Found:
        """Return the question with this id. Raises NotAllowed if it belongs to another client."""
        if not isinstance(id, str):
            raise NotAllowed("elicitId must be a string, from _meta.elicitationPending.")
        if caller.owner is None or owner_of(id) != caller.owner:
            raise NotAllowed(_UNKNOWN)
        asked = await self._service.elicitations.get(id)
        if asked is None or asked.run is None:
            raise NotAllowed(_UNKNOWN)
        # Wait for a result that is being sent, because its arrival ends the run.
        await self._service.running_tools.wait_until_sent(asked.run)
        run = await self._service.elicitations.read(Run, owner=asked.owner, id=asked.run)
        called = None if run is None else run.called
        if run is None or called is None:
            raise NotAllowed(_UNKNOWN)
        is_this_clients = called.client == caller.client or asked.is_shared
        if called.server != self._server or not is_this_clients:
            raise NotAllowed(_UNKNOWN)
        return _Found(asked=asked, run=run, called=called)

    async def _go_on(self, found: _Found, given: Mapping[str, object]) -> GoOn:
        """Apply the model's action and return the call to repeat.

        Raises ElicitError if the action is not possible or the call cannot be repeated here.
        """
        asked = found.asked
        action = "wait" if given.get("action") is None else given["action"]
        if action not in ACTIONS:
            raise NotAllowed(_NO_YES)
        if action != "wait" and asked.status.is_final:
            raise NotAllowed(
                f"The question has ended: {asked.status}. Use action wait to get the result."
            )
        if action == "decline":
            await self._service.kinds.decisions.give_up(asked)
        elif action == "wait" and given.get("content") is not None:
            await self._answer(asked, cast("Json", given["content"]))
        if asked.is_shared:  # several calls wait for this question: which one to repeat is unknown
            raise NotAllowed(_CALL_AGAIN)
        if self._is_wiped(found.run):
            raise NotAllowed(_UNKNOWN)
        if found.called.arguments is None:
            raise NotAllowed(_CALL_AGAIN)
        return GoOn(
            tool=found.called.tool,
            version=found.called.version,
            arguments=json.loads(found.called.arguments),
            run_id=found.run.id,
            dismissed=asked.id if action == "cancel" else None,
        )

    def _is_wiped(self, run: Run) -> bool:
        """Return True if the run has ended and its result is gone. It must not run again."""
        if run.finished_at is None:
            return False
        return run.result is None or self._service.clock() >= run.expires_at

    async def _pass_on(self, asked: Elicitation, typed: object) -> str:
        """Check the user code that the person read, and return the text for the model.

        Raises NotAllowed if the code is wrong.
        """
        if not isinstance(typed, str) or not asked.is_by_code:
            raise NotAllowed(_UNKNOWN)
        try:
            typed_code = await self._service.identity.user_codes.typed(asked, typed)
        except NotPossible:
            raise NotAllowed(_UNKNOWN) from None
        if typed_code is not TypedCode.RIGHT:
            raise NotAllowed(typed_code.value)
        return f"{typed_code.value} When the person is done: {_CALL_AGAIN}"

    async def _answer(self, asked: Elicitation, content: Json) -> None:
        """Store the model's own answer to a plain form, if the model may answer.

        Raises NotAllowed if the model may not answer, and InvalidAnswer if the answer is invalid.
        The question then stays open, because the answer did not come from the person.
        """
        service = self._service
        kind = service.kinds.on_page(asked.kind)
        may_answer = service.identity.lets_model_answer and traits_of(asked.kind).accepts_proof(
            ByModel()
        )
        if kind is None or not may_answer:
            raise NotAllowed(_NO_YES)
        if asked.status.is_final or service.clock() >= asked.expires_at:
            raise NotAllowed(_UNKNOWN)
        faults: Sequence[Fault] = check(kind.schema(asked), content)
        faults = faults or await service.kinds.rules.faults(asked, content)
        if faults:
            details = [(fault.path, fault.message) for fault in faults]
            raise InvalidAnswer(details, elicitation_id=asked.id)
        given = checked_content(content)
        await service.kinds.complete(asked, given, ByModel())
        _log.info("elicitation.answered_by_model", extra={"id": asked.id})
