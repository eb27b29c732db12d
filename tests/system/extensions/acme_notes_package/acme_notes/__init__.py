"""Notes of a project, which people write over the API and models over a tool."""
