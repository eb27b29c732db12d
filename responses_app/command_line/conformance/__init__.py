"""`respsite conformance`: checks of the Responses API, its WebSocket, Chat Completions and Messages, at any server.

`verdicts` has what a check is, `talk` and `socket` how a server is asked, `shapes` what answers are made of, `groups/`
the checks themselves, `running` runs them, and `telling` tells what came of it.
"""
