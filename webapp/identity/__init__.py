"""Who calls, and who opens a link: the two have to be one.

A caller is known by an access token (`access_tokens` says whose it is, `bearer_auth` stands before
`/mcp`), or as a user of this machine (`local_peer`: whose socket it is, by the system). A browser
is known by a session after a sign-in (`sign_in`, `sessions`), by the word of the application around
ours, whose user it is (`users`), by a pairing where the system does not tell (`pairing`), or by
nothing; then letters are compared in the chat (`user_codes`, RFC 8628's user code). `identity`
holds the table. A program that calls the HTTP API is known by its key (`api_keys`), and the person
it acts for by their access token. Who decides what others ask says `approvers`.

Promised: loopback proves nothing by itself; an e-mail address is never compared; nothing of a
question is shown before its opener is known.
"""
