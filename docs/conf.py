"""How Sphinx builds these pages: `make docs`. What is generated from the code stands in `docs/extension/`."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
os.environ["DJANGO_SETTINGS_MODULE"] = "respsite.settings"
os.environ.setdefault("SECRET_KEY", "no page has anything of it")  # else one would be made, and kept
os.environ.setdefault("DATA_DIR", str(ROOT / "var"))  # Sphinx reads this file in its own folder

import django

django.setup(set_prefix=False)

project = "respsite"
author = "the authors of respsite"
extensions = ["myst_parser", "docs.extension"]
exclude_patterns = ["extension"]
html_theme = "furo"
html_title = "respsite"
html_favicon = "../responses_app/static/respsite/icon.svg"
html_copy_source = False
html_use_index = False
html_show_sphinx = html_show_copyright = False
html_theme_options = {"source_repository": "", "top_of_page_buttons": []}
myst_heading_anchors = 4  # links name headings as GitHub writes them, and a wrong one fails the build
myst_links_external_new_tab = False
suppress_warnings = ["misc.highlighting_failure"]  # blocks show what is left out by an ellipsis
nitpicky = True
