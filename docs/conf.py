"""How Sphinx builds these pages: `make docs`. What is generated from the code stands in `docs/extension/`."""

import gc
import os
import sys
from pathlib import Path

gc.disable()  # what a build makes stays until its end, and looking through it again and again takes 40 % of the time

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
os.environ["DJANGO_SETTINGS_MODULE"] = "respsite.settings"
os.environ.setdefault("SECRET_KEY", "no page has anything of it")  # else one would be made, and kept
os.environ.setdefault("DATA_DIR", str(ROOT / "var"))  # Sphinx reads this file in its own folder

import django

django.setup(set_prefix=False)

from django.template.loader import render_to_string

project = "respsite"
author = "the authors of respsite"
extensions = ["myst_parser", "docs.extension"]
exclude_patterns = ["extension"]
html_theme = "furo"
html_title = "respsite"
html_favicon = "../responses_app/static/respsite/icon.svg"
html_copy_source = False
html_search_scorer = str(ROOT / "docs/search-scorer.js")
html_use_index = False
html_show_sphinx = html_show_copyright = False
# The bar and the colours of the playground and the admin.
html_static_path = ["../responses_app/static/respsite/places.css", "places-in-furo.css"]
html_css_files = ["places.css", "places-in-furo.css"]
html_theme_options = {
    "source_repository": "",
    "top_of_page_buttons": [],
    "announcement": render_to_string("respsite/places.html", {"here": "docs"}),
    "light_css_variables": {"color-brand-primary": "#2459c9", "color-brand-content": "#2459c9"},
    "dark_css_variables": {"color-brand-primary": "#8db4ff", "color-brand-content": "#8db4ff"},
}
myst_heading_anchors = 4  # links name headings as GitHub writes them, and a wrong one fails the build
myst_links_external_new_tab = False
suppress_warnings = ["misc.highlighting_failure"]  # blocks show what is left out by an ellipsis
nitpicky = True
