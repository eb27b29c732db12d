"""Commands for people: `chat`, `replay` and `bench` of any server of responses, and `configure` for coding agents.

`streams` reads a server's events, `showing` writes them to a terminal. `agents` knows the settings of coding agents,
`agent_files` merges them into their files.
"""
