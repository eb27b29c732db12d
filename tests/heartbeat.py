"""How long a server's event loop stands still, measured inside its process.

    with Server(folder, application=heartbeat.APPLICATION) as server:
        longest_stop(server)           # forget what was before
        httpx.post(…)
        assert longest_stop(server) < 0.2

`APPLICATION` is the server's own application and beside it `GET /heartbeat`, which answers with the longest stop since
it was last asked, in seconds. A *stop* is the time from one beat to the next that the loop did not choose to wait: its
thread was at work, or waited for the interpreter's lock or for input and output. What it waited for a processor is not
counted (Linux tells it), and neither is what the whole process did not use of one: so a busy machine is no stop, as far
as that can be told. A test may still want to try a stop that it finds again.
"""

import httpx

from tests.server import Server

APPLICATION = "tests.heartbeat_asgi:application"


def longest_stop(server: Server) -> float:
    """Return the longest stop of a server's loop since this was last asked, in seconds."""
    answer = httpx.get(f"{server.url}/heartbeat", timeout=30, verify=False)
    return float(answer.json()["longest_stop"])
