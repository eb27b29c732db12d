"""The playground: a page at `/` that opens the WebSocket of the API itself, for people who try the server."""
