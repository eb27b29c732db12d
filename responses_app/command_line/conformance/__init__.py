"""`respsite conformance`: checks of the Responses API, its WebSocket, Chat Completions and Messages, at any server.

`groups/` has the checks, `talk` asks the server, `shapes` says which answers are right, `checks` runs the checks, and
`telling` shows the results.
"""
