"""The HTTP API: programs ask their users questions without MCP, in any language.

A request carries an API key. It also carries a person's access token if the program acts for a
person who is not one of its own users. A person can send their token without a key. Cookies and
credentials in the URL are ignored (`access`). A program asks the same questions as a tool, through
the same code (`asking`): the record is durable and a waiter is registered before the link is sent.

Modules:
- `questions`: routes of questions, and those that change an open question.
- `runs`: routes of units of work with several questions.
- `approvals`, `decisions`: permissions that a person gave, and the inbox of an approver.
- `accounts`, `proxy`, `payments`: results of questions; the proxy sends requests to a provider.
- `events`: the operator's logs of incoming webhooks and outgoing events.
- `representations`, `states`, `paging`: bodies, the state of a question, and pages of lists.
- `router`, `reference`: the compiled routes, and their OpenAPI document and page.

A question belongs to the program that asked and to the person who was asked. Everyone else gets
404, as for an id that never existed. The same holds for accounts and payments:
`tests/attacks/test_api_owners.py` tries every route as another caller. Reading a question changes
nothing. A program that has used an answer reports that (`taken`); the answer is then erased, or the
payment spent. A key can ask, approve or operate, but only one of these. A key that approves answers
forms and confirmations of the users it names. It cannot answer gates, accounts, payments or
secrets, nor anything of this machine's local user.

This package may import `routes`, which has the problem details. It never imports `webapp.mcp` or a
concrete store. Every invalid request gets problem details (RFC 9457) that say what to do.
"""
