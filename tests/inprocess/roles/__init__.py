"""Who may see and do what, asked of a real server."""
