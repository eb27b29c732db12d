"""`python -m docs.extension`: write the generated parts of all pages anew."""

import os
import sys
from pathlib import Path

import django

DOCS = Path(__file__).parent.parent


def main() -> None:
    """Write each page whose parts the code has changed, and name it."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "respsite.settings"
    os.environ.setdefault("SECRET_KEY", "no page shows any of it")  # otherwise one would be made, and kept
    django.setup(set_prefix=False)
    from docs.extension import written  # needs the models

    for page in sorted(DOCS.rglob("*.md")):
        before = page.read_text()
        after = written(before)
        if after != before:
            page.write_text(after)
            sys.stderr.write(f"{page.relative_to(DOCS)}\n")


if __name__ == "__main__":
    main()
