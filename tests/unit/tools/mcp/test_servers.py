"""MCP_SERVERS: what can be configured, and what that lets requests reach."""

from pathlib import Path

from responses_app.tools.network import NOTHING_ALLOWED, AllowedHosts
from responses_app.tools.settings import ServerAccess, allowed_with, parse_servers

OLD = ServerAccess(transport="sse", url="https://crm.example:8443/sse", headers={"X-Key": "a-secret"})
FILES = ServerAccess(transport="stdio", command=("npx", "-y", "files"), env={"TOKEN": "a-secret"})
JSON = """{"mcpServers": {
    "crm": {"type": "sse", "url": "https://crm.example:8443/sse", "headers": {"X-Key": "a-secret"}},
    "files": {"command": "npx", "args": ["-y", "files"], "env": {"TOKEN": "a-secret"}}
}}"""


def test_a_file_may_have_them_in_the_form_of_other_programs(tmp_path: Path) -> None:
    file = tmp_path / "servers.json"
    file.write_text(JSON)
    assert parse_servers(JSON) == parse_servers(str(file)) == {"crm": OLD, "files": FILES}


def test_nothing_shows_their_secrets() -> None:
    assert "a-secret" not in repr([OLD, FILES])
    assert (OLD.host, FILES.host) == ("crm.example", "npx")


def test_the_operators_own_servers_may_be_anywhere_at_their_port() -> None:
    own = allowed_with({"crm": OLD, "files": FILES}, AllowedHosts.parse("10.1.0.0/16"))
    assert own.has_name("crm.example", 8443)
    assert not own.has_name("crm.example", 443)
    assert len(own.networks) == 1
    assert allowed_with({}, NOTHING_ALLOWED) == NOTHING_ALLOWED
