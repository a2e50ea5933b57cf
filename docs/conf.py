"""The site of these pages, which `make docs` builds: nothing in it is loaded from elsewhere."""

project = "elicit-url"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["*.py"]
html_theme = "furo"
html_title = project
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
html_static_path: list[str] = []

# Docstrings are written with single backticks around code.
default_role = "code"
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88

myst_heading_anchors = 3
