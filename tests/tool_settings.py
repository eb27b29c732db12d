"""The settings of tools, for the tests of settings: right values with what they mean, and wrong ones."""

from typing import Any

from responses_app.tools.mcp.servers import ServerAccess
from responses_app.tools.network import AllowedHosts

MIB = 1024 * 1024
RIGHT_OF_TOOLS: dict[str, tuple[str, Any]] = {
    "SEARCH_URL": (" ddgs+http://127.0.0.1:8000/ ", "ddgs+http://127.0.0.1:8000"),
    "SEARCH_MCP": (" ", ""),
    "SEARCH_ALLOWED_HOSTS": ("Wiki.internal, 10.1.0.0/16", AllowedHosts.parse("wiki.internal,10.1.0.0/16")),
    "IMAGE_SERVICE_URL": (" http://127.0.0.1:8188/v1/images/generations/ ", "http://127.0.0.1:8188/v1"),
    "IMAGE_SERVICE_KEY": ("sk-of-the-service", "sk-of-the-service"),
    "IMAGE_SERVICE_MODEL": ("flux", "flux"),
    "IMAGE_SERVICE_SECONDS": ("5", 5.0),
    "IMAGE_MAX_BYTES": ("1048576", MIB),
    "ENABLE_COMPUTER_CALL": ("on", True),
    "SANDBOX": ("Bubblewrap", "bubblewrap"),
    "SANDBOX_MCP": (" ", ""),
    "SANDBOX_PYTHON": ("/opt/science/bin/python", "/opt/science/bin/python"),
    "SANDBOX_MEMORY_BYTES": ("268435456", 256 * MIB),
    "SANDBOX_DISK_BYTES": ("1048576", MIB),
    "SANDBOX_MAX_PROCESSES": ("16", 16),
    "SANDBOX_CALL_SECONDS": ("5", 5.0),
    "SANDBOX_MAX_CONTAINERS": ("1", 1),
    "SANDBOX_IDLE_SECONDS": ("60", 60.0),
    "MCP_SERVERS": (
        '{"wiki": "https://wiki.example/mcp", "files": "server-files --root \'/srv/my files\'"}',
        {
            "wiki": ServerAccess(transport="http", url="https://wiki.example/mcp"),
            "files": ServerAccess(transport="stdio", command=("server-files", "--root", "/srv/my files")),
        },
    ),
    "MCP_ALLOWED_HOSTS": ("127.0.0.1:8900", AllowedHosts.parse("127.0.0.1:8900")),
    "MCP_SERVER_URLS": ("off", False),
    "MCP_SSE": ("on", True),
    "SERVER_TOOL_SECONDS": ("5", 5.0),
    "SERVER_TOOL_MAX_OUTPUT_BYTES": ("1024", 1024),
}
WRONG_OF_TOOLS: dict[str, tuple[list[str], str]] = {
    "IMAGE_SERVICE_URL": (["127.0.0.1:8188", "ftp://a", "http://", "http://a:x"], "the URL of a service"),
    "IMAGE_SERVICE_SECONDS": (["0"], "a number of seconds of at least 1"),
    "IMAGE_MAX_BYTES": (["1"], "a whole number of at least 65536"),
    "ENABLE_COMPUTER_CALL": (["often"], "on or off"),
    "SANDBOX": (["on", "docker", "pyeryx"], "one of auto, bubblewrap"),
    "SANDBOX_MCP": (["a b", ".b"], "the label of an MCP server"),
    "SANDBOX_MEMORY_BYTES": (["1024", "1 GiB"], "a whole number of at least 67108864"),
    "SANDBOX_DISK_BYTES": (["0"], "a whole number of at least 1048576"),
    "SANDBOX_MAX_PROCESSES": (["1", "5000"], "a whole number of at least 8"),
    "SANDBOX_CALL_SECONDS": (["0"], "a number of seconds of at least 0.1"),
    "SANDBOX_MAX_CONTAINERS": (["0"], "a whole number of at least 1"),
    "SANDBOX_IDLE_SECONDS": (["0"], "a number of seconds of at least 1"),
    "SEARCH_URL": (["searxng:8080", "ftp://a", "http://", "ddgs+http://a b", "http://a:x"], "the URL of a SearXNG"),
    "SEARCH_MCP": (["a b", "a.", ".b", "a..b"], "the label of an MCP server"),
    "SEARCH_ALLOWED_HOSTS": (["http://a", "10.0.0.1/8", "a b"], "host names, .endings of names, addresses"),
    "MCP_SERVERS": (
        [
            "[]",
            "{",
            "/no/such/file.json",
            '{"a b": "https://a"}',
            '{"python": "https://a"}',
            '{"a": 1}',
            '{"a": {}}',
            '{"a": {"url": "ftp://a"}}',
            '{"a": {"url": "https://a", "command": "b"}}',
            '{"a": {"url": "https://a", "transport": "carrier pigeon"}}',
            '{"a": {"url": "https://a", "headers": {"b": 1}}}',
            '{"a": {"command": ["b"]}}',
            '{"a": {"command": ""}}',
            '{"a": {"command": "b", "password": "c"}}',
        ],
        "a JSON object of servers",
    ),
    "MCP_ALLOWED_HOSTS": (["http://a", "10.0.0.1/8"], "host names, .endings of names, addresses"),
    "MCP_SERVER_URLS": (["public"], "on or off"),
    "MCP_SSE": (["old"], "on or off"),
    "SERVER_TOOL_SECONDS": (["0"], "a number of seconds of at least 1"),
    "SERVER_TOOL_MAX_OUTPUT_BYTES": (["1"], "a whole number of at least 1024"),
}
TOOLS_TOGETHER = {
    "two interpreters": ({"SANDBOX": "bubblewrap", "SANDBOX_MCP": "a"}, ["SANDBOX", "SANDBOX_MCP"]),
    "an interpreter by a server that is not there": ({"SANDBOX_MCP": "a"}, ["SANDBOX_MCP=a", "MCP_SERVERS"]),
    "two searches": ({"SEARCH_URL": "http://h", "SEARCH_MCP": "a"}, ["SEARCH_URL", "SEARCH_MCP"]),
    "a search by a server that is not there": ({"SEARCH_MCP": "a.b"}, ["SEARCH_MCP=a.b", "MCP_SERVERS"]),
}
