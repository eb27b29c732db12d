"""The code interpreter, in a sandbox or by an MCP server."""
