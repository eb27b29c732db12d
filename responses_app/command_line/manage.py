"""What the program hands to Django: `respsite manage …`, as `manage.py` in a checkout, and `respsite serve`."""

import sys
from argparse import Namespace
from collections.abc import Sequence

from responses_app.management.flags import start_over


def run_django(words: Sequence[str]) -> int:
    """Run one of Django's commands, ours among them; return the exit status."""
    from responses_app.management.djangos import execute

    execute(["respsite manage", *words])
    sys.stdout.flush()
    return 0


def run_serve(options: Namespace) -> int:
    """Serve until it is interrupted. Flags become settings, and this process begins anew with them."""
    start_over(vars(options))
    return run_django(["serve"])
