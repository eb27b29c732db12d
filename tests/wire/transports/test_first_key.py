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


def test_none_lies_in_a_log_that_programs_read(folder: Path) -> None:
    with ClosedServer(folder, auth="on", log_format="json") as server:
        assert "respsite manage create_key" in server.output
        assert "sk-" not in server.output
        key = server.new_key("--project", "team")
        assert post(server, key).status_code == 200
        before = server.output
        server.stop()
        server.start()
        assert "no API key yet" not in server.output.removeprefix(before)
