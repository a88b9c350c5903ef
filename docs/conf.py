"""The settings by which Sphinx makes the site of a copy of the pages that `make_site.py` lays out."""

project, copyright, author = "placealg", "the placealg developers", "the placealg developers"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "README"
html_theme, html_title, html_copy_source = "furo", "placealg", False
myst_heading_anchors = 6
autodoc_typehints, default_role = "none", "code"
nitpicky = False
