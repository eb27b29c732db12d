"""`respsite conformance`: checks of the Responses API, its WebSocket, Chat Completions and Messages, at any server.

`program` has all groups of checks: `json_answers`, `streams`, `state`, `inputs`, `tools` and `websocket` of responses,
`chats`, and `messages`. `talk` asks the server, `shapes` says which answers are right, `checks` runs the checks, and
`telling` shows the results.
"""
