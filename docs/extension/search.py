"""What the search of the built pages knows beside their text: words that people type, and pages that it leaves out.

Sphinx finds a page only if it has every word of a question. So a page is given the words under which people look for
what it tells in other words. They are written into the page's head as its keywords.
"""

from collections.abc import Mapping

# Lists that have every word of the project: they would come first for any question.
LEFT_OUT = ("reference/modules", "reference/conformance", "how-to/index", "explanation/index", "reference/index")
KEYWORDS: Mapping[str, str] = {}


def head_of(page: str) -> str:
    """Return the front matter of a page, "" for one without."""
    lines = []
    if page in LEFT_OUT:
        lines.append("nosearch: true")
    if page in KEYWORDS:
        lines += ["myst:", "  html_meta:", f'    "keywords lang=en": "{KEYWORDS[page]}"']
    return "\n".join(["---", *lines, "---", "", ""]) if lines else ""
