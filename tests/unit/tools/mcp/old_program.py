"""The program of `mcp_program` as it was before 2026: it does not know `server/discover`."""

import json
import subprocess
import sys

UNKNOWN = {"code": -32601, "message": "Method not found"}


def main() -> None:
    """Pass on what comes to a child that answers by itself, but for what it could not know."""
    command = [sys.executable, "-m", "tests.kit.mcp_program"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        for line in sys.stdin:
            asked = json.loads(line)
            if asked.get("method") == "server/discover":
                print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "error": UNKNOWN}), flush=True)
            else:
                child.stdin.write(line)
                child.stdin.flush()


if __name__ == "__main__":
    main()
