"""`respsite conformance`: checks of the Responses API, its WebSocket, Chat Completions and Messages, at any server.

`groups/` has the checks, `asking/` how a server is asked and what a check is, `running` runs them, and `telling` tells
what came of it.
"""
