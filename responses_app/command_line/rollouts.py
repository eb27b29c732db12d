"""`respsite rollouts list|show|reward|end|delete`: what a server has of roll-outs, as JSON, a line for each.

`respsite rollouts export` is `rollout_export`: its answer is a file of any size.
"""

import asyncio
import json
import sys
from argparse import Namespace
from typing import Any
from urllib.parse import quote

import aiohttp

from responses_app.command_line.connections import fetch
from responses_app.command_line.endpoint import CommandFailed, RemoteServer, endpoint_of, session_options

PAGE = 100  # roll-outs that are asked for at once


def run(options: Namespace) -> int:
    """Do what is asked, and print what the server answers."""
    return asyncio.run(_run(options))


async def _run(options: Namespace) -> int:
    server = endpoint_of(options.url, options.key_variable)
    async with aiohttp.ClientSession(**session_options(server)) as session:
        if options.action == "list":
            await _list(session, server, options)
            return 0
        # A URL's reserved characters in an id would ask for something else: the server says that it is none.
        path = f"/rollouts/{quote(options.id, safe='')}"
        match options.action:
            case "show":
                asked = fetch(session, server, path, params={"tree": str(options.tree).lower()})
            case "reward":
                body = {"reward": options.reward, **({"turn": options.turn} if options.turn else {})}
                asked = fetch(session, server, f"{path}/reward", "POST", json=body)
            case "end":
                asked = fetch(session, server, f"{path}/end", "POST")
            case _:
                asked = fetch(session, server, path, "DELETE")
        _print(await asked)
    return 0


async def _list(session: aiohttp.ClientSession, server: RemoteServer, options: Namespace) -> None:
    """Print roll-outs, the newest first, as many as are wanted. Raises `CommandFailed` for what is not a list."""
    left, after = options.limit, None
    while left > 0:
        params = {"limit": str(min(PAGE, left)), "group": options.group, "after": after}
        known = {name: value for name, value in params.items() if value is not None}
        page = await fetch(session, server, "/rollouts", params=known)
        data, after = page.get("data"), page.get("last_id")
        if not isinstance(data, list) or not isinstance(after, str):
            raise CommandFailed(f"{server.base_url}/rollouts did not answer with a list of roll-outs.")
        for rollout in data:
            _print(rollout)
        left -= len(data)
        if not page.get("has_more") or not data:
            return


def _print(answer: Any) -> None:
    # In ASCII: clients name groups and write metadata, and a terminal obeys some characters.
    sys.stdout.write(json.dumps(answer) + "\n")
