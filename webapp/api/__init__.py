"""The HTTP API: a program asks its users, without MCP and in any language.

A request brings an API key, and the access token of the person it acts for, if that is nobody's own
user; no cookie counts, and nothing in the address (`access`). A person may bring their token alone.
What a program asks is what a tool asks, by the same verbs and the same call (`asking`): the record
is durable and a waiter registered before the link leaves. `questions` has the routes, `resolving`
those that change a question that stands, `approvals` those of what was allowed,
`runs` those of a piece of work that asks several and ends as one. What came of a
question has routes too: `accounts`, which `proxy` sends a program's requests to, and `payments`
with their refunds; `webhooks` is the operator's log. `representations` is what travels, `states`
how it is told, `paging` a list in pages; `router` compiles the routes, and `reference` is the
document that tells of them, and a page.

A question belongs to the program that asked it and to the person whom it asked: another one's is
404, as one that never was. So it is with an account, which the person lets this program use, and
with a payment: `tests/attacks/test_api_owners.py` tries every route as somebody else. Reading a
question changes nothing; a program that has used an answer says so (`taken`), and then it is wiped,
or spent. A key asks, approves or operates, and never two of them. One that approves
answers forms and confirmations of the users that it names: no gate, no account, no payment, no
secret, and nothing of this machine's own user, who is nobody's user.

Stands after `routes`, which have the problem details; never imports `webapp.mcp` or a concrete
store. Promised: whatever is asked wrongly is told in problem details (RFC 9457), with what to do.
"""
