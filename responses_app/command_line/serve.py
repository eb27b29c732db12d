"""`respsite serve`: migrate, and serve in the foreground. The same as `manage.py serve`."""

import os
import sys
from argparse import Namespace

from responses_app.command_line.manage import run_django
from responses_app.management.flags import given_settings


def run(options: Namespace) -> int:
    """Serve until it is interrupted. Flags become settings, and this process begins anew with them.

    So they stand in its environment, which only its user can read, and not in its command line, which all can.
    """
    given = given_settings(vars(options), os.environ)
    if not given:
        return run_django(["serve"])
    os.environ.update(given)
    os.execv(sys.executable, [sys.executable, sys.argv[0], "serve"])
