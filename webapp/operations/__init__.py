"""The records of all people, as operators see them: lists, histories, and changes.

The commands and the operator's pages share this package. `rows` and `payment_rows` have a row class
for each list, `rows` also reads a list for a page, `history` has the timeline of a question and the
audit entries of an owner, and `acts` has the changes.

Risks: an operator's list reveals an answer or a token. So a row has only kinds, states, reasons,
ids and times. Another risk: a list gets slower as the store grows. So a page reads the store at
most twice for a list, reads a limited number of rows, and says if there are more.
"""
