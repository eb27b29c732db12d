"""`respsite notes`."""

import sys
from argparse import Namespace


def run(options: Namespace) -> int:
    """Say how a note is written."""
    sys.stdout.write('POST /v1/notes {"text": "…"}\n')
    return 0
