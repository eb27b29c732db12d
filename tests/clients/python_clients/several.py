"""Run several programs in one process: python several.py PROGRAM…, each a JSON list of a file and its arguments.

Prints a line of JSON for each: what it printed, and how it failed, if it did. What these clients import takes
seconds of a core, and is so imported once.
"""

import contextlib
import io
import json
import runpy
import sys
import traceback

for program in sys.argv[1:]:
    sys.argv = json.loads(program)
    printed, failed = io.StringIO(), ""
    with contextlib.redirect_stdout(printed):
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except Exception:  # noqa: BLE001 - whoever asked raises it; the next ones run all the same
            failed = traceback.format_exc()
    print(json.dumps({"printed": printed.getvalue().splitlines(), "failed": failed}), flush=True)
