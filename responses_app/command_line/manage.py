"""`respsite manage …`: Django's commands, as `manage.py` runs them in a checkout."""

import os
import sys
from collections.abc import Sequence


def run_django(words: Sequence[str]) -> int:
    """Run one of Django's commands, ours among them; return the exit status."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "respsite.settings")
    from django.core.management import execute_from_command_line

    called = "respsite manage"
    execute_from_command_line([called, *words])
    sys.stdout.flush()
    return 0
