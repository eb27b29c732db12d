"""The key that a server makes at its first start."""

from pathlib import Path

from tests.kit.closed import ClosedServer, post


def test_the_first_start_makes_a_key_and_prints_it_once(folder: Path) -> None:
    server = ClosedServer(folder, auth="on")
    with server:
        (line,) = [line for line in server.output.splitlines() if line.startswith("API key")]
        key = line.split()[-1]
        assert post(server, key).status_code == 200
    server.start()
    server.stop()
    assert server.output.count("API key  ") == 1
