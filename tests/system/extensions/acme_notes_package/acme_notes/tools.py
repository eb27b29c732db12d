"""The tools of models."""

from mcp.server import MCPServer

from acme_notes.store import notes


def notes_of(project: str) -> MCPServer:
    """Return the tools for one project's notes."""
    server = MCPServer("notes")

    @server.tool()
    async def add(text: str) -> str:
        """Write a note."""
        await notes().add(project, text)
        return f"{len(await notes().texts(project))} notes"

    return server
