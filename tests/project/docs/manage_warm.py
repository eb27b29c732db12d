"""`manage.py` that has imported everything once: each line of its input is a command, which a process of its own runs.

A line is a JSON array of arguments; what is answered is `{"code", "output", "complaints"}`, on a line. Starting Python
and Django takes 1.4 s of CPU for each command, and what a page's commands do takes none.
"""

import json
import os
import sys
import tempfile
import traceback
from pathlib import Path

import django
from django.core.management import execute_from_command_line


def run(arguments: list[str], folder: Path) -> dict[str, object]:
    """Run one command in a process of its own, as `python manage.py` does."""
    files = [folder / "output", folder / "complaints"]
    child = os.fork()
    if child == 0:
        for number, file in enumerate(files, start=1):
            os.dup2(os.open(file, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
        try:
            execute_from_command_line(["manage.py", *arguments])
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
            if isinstance(ended.code, str):
                print(ended.code, file=sys.stderr)
        except Exception:  # noqa: BLE001  # as Python itself ends
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    _, status = os.waitpid(child, 0)
    output, complaints = (file.read_text() for file in files)
    return {"code": os.waitstatus_to_exitcode(status), "output": output, "complaints": complaints}


if __name__ == "__main__":
    django.setup()
    with tempfile.TemporaryDirectory() as name:
        for line in sys.stdin:
            print(json.dumps(run(json.loads(line), Path(name))), flush=True)
