#!/usr/bin/env python
"""Django's command line: `python manage.py help`."""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "respsite.settings")
    try:
        execute_from_command_line(sys.argv)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
