"""Notifications: messages that tell a person that something waits for them.

`delivery` defines who is notified, where and when (`[notify.NAME]` in `elicit.toml`), makes the
rows of a new question, writes the text and passes it to Apprise, which knows e-mail, chats and web
hooks, in a process of its own (`apprise_program`). `sender` claims due rows, sends the messages and
schedules reminders and retries.

The path of a message: the write that stores a new question also stores a row for each address of
the table that applies. The sweeper finds the row when it is due. The sender claims the row by
compare-and-set, reads the question, and sends the message if the question is still open. Then it
schedules the next reminder or the next try, or ends the row.

Guarantees: a message is stored together with its question, so that no restart loses it. It is sent
at least once, and only by the process that claimed it. No message is sent about a question that has
ended. An unreachable address delays no call and no other address. Messages contain no arguments,
amounts or secrets, and the question's text only if the operator allows it. Their link leads to a
page that asks people to sign in. The addresses often contain passwords, so no log, metric or error
shows them.

Not guaranteed: exactly one message. If the process dies after it has sent the message and before it
has marked the row, the message is sent again.
"""
