"""`python -m respsite`: the same as the program `respsite`."""

import sys

from responses_app.command_line import main

if __name__ == "__main__":
    sys.exit(main())
