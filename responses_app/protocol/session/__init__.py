"""A WebSocket's session without the socket: lanes, steering, tool outputs."""
