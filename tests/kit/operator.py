"""Runs the commands that it reads, a JSON list a line, and answers each with what it printed.

    python -m tests.kit.operator PATH

PATH is a named pipe with the commands. It ends when nobody has that open for writing any more.
"""

import json
import sys
from io import StringIO
from pathlib import Path

import django
from django.core.management import call_command


def operate(commands: Path) -> None:
    """Run what comes, to the end of the pipe."""
    with commands.open() as lines:
        for line in lines:
            said = StringIO()
            call_command(*json.loads(line), stdout=said, stderr=StringIO())
            print(json.dumps(said.getvalue()), flush=True)


if __name__ == "__main__":
    django.setup()
    operate(Path(sys.argv[1]))
