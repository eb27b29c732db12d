"""manage.py, but workers are found too large as soon as they serve, and have served long enough then, too."""

import dataclasses
import os
import sys

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "respsite.settings")
    from django.core.management import execute_from_command_line

    from responses_app.management.commands import serve
    from responses_app.management.supervisor import pace

    serve.pace = lambda **times: dataclasses.replace(pace(**times), grown_seconds=0.0, steady_seconds=0.0)
    execute_from_command_line(sys.argv)
