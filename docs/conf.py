"""How the documentation becomes a site: `make docs`."""

project = "envbuild"
author = "the envbuild authors"
copyright = author  # noqa: A001  # Sphinx's name; no year, so that the same text gives the same site
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "envbuild"
html_show_sphinx = False
html_copy_source = False
exclude_patterns = ["schemas"]

# A page is read in the repository, too: links between pages are links between files.
myst_heading_anchors = 3
# Decisions are listed by their own README, and would drown everything else beside the pages.
suppress_warnings = ["toc.not_included"]
