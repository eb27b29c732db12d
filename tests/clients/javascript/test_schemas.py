"""The schemas of Vercel's AI SDK (Zod) as an oracle: an item that they refuse costs its user the whole answer."""

import json
from pathlib import Path

from tests.clients.javascript.node import installed, run
from tests.kit.output_items import output_items


async def test_the_ai_sdk_takes_items_of_every_type(tmp_path: Path) -> None:
    # It knows no programs, and no image that could not be made: its `result` is null, as OpenAI's types have it.
    items = [item for item in output_items() if item["type"] != "program" and item.get("result", "") is not None]
    assert len({item["type"] for item in items}) == 12
    written = tmp_path / "items.json"
    written.write_text(json.dumps(items))
    told = await run("schemas.mjs", str(written), packages=installed(), folder=tmp_path / "run")
    assert told == {"refused": [], "read": sum(1 if item.get("status") == "in_progress" else 2 for item in items)}
