"""HTTP and WebSocket: who may ask, how bodies come in, and how answers go out."""
