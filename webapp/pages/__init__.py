"""What a person sees: views, and the words in them.

`builder` makes a view from an elicitation and who looks at it, `views` are the values that
templates get, `renderer` is the one Jinja environment, `form` the fields of a form, `locale` the
languages.

Promised: no inline script or style; words of a tool or a model stand in a marked quotation, plain
and short; a page says who asks, for what, and what happens next; nothing of a secret is ever a
value.
"""
