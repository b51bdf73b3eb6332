"""Sphinx' settings for the documentation site. Nothing is fetched from elsewhere."""

from kt_core import __version__

project = "kt"
author = "the kt authors"
release = __version__
extensions = ["myst_parser"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"kt {release}"
html_copy_source = False
html_show_sphinx = False
html_last_updated_fmt = None
pygments_style = "friendly"
pygments_dark_style = "monokai"
html_show_copyright = False
smartquotes = False  # they also eat backslashes, and regular expressions are full of them
