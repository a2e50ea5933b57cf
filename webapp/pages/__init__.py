"""The pages that people see: their views and their texts.

`builder` makes a view from an elicitation and its viewer. `views` has the values that templates
receive, `renderer` the Jinja environment, `form` the fields of a form, and `locale` the languages.

Guarantees: pages have no inline script or style. Texts of a tool or a model are shown as a marked
quotation, in plain text and short. A page says who asks, for what, and what happens next. A secret
is never sent back as a value.
"""
