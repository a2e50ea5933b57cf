"""Identity: who calls, and who opens a link. Both have to be the same person.

A caller is identified by an access token (`access_tokens` verifies it, `bearer_auth` protects
`/mcp`), or as a user of this machine (`local_peer` asks the system who owns the socket). A browser
is identified by a session after a sign-in (`sign_in`, `sessions`), by the application that embeds
this one (`users`), or by a pairing if the system cannot name the user (also in `sessions`).
Otherwise the person copies a code from the page to the chat (`user_codes`, RFC 8628's user code).
`identity` combines these methods. A program that calls the HTTP API is identified by its key
(`api_keys`), and a person for whom the program acts by an access token. `approvers` says who
decides for other people.

Guarantees: a loopback address proves nothing by itself. E-mail addresses are never compared. No
part of a question is shown before the person who opens it is identified.
"""
