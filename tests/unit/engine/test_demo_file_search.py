"""The demo engine searches files where it is offered that, and cites what it finds."""

import json

from engine.formats.base import FunctionTool, ToolNamespace
from responses_app.tools.file_search import DESCRIPTION, FUNCTION, NAME, NAMESPACE, SCHEMA
from tests.unit.engine.prompts import answer_of, call_of, reply_with

OFFERED = [ToolNamespace(NAMESPACE, DESCRIPTION, (FunctionTool(FUNCTION, "Searches.", json.dumps(SCHEMA)),))]
FOUND = "[2:0] a b.txt\nThe shell is bone.\nIt is hard.\n\n[2:1] c.txt\nElse."


def test_it_searches_and_cites() -> None:
    asked = "Please search the files for turtle shells."
    assert call_of(reply_with(asked, OFFERED)) == (NAME, {"queries": ["turtle shells"]}, True)
    answer = answer_of(reply_with(asked, OFFERED, (NAME, FOUND)))
    assert answer.endswith("a b.txt says: The shell is bone.\nIt is hard.【2:0†a b.txt】")
    assert answer_of(reply_with(asked, OFFERED, (NAME, "Nothing was found."))).endswith("was told: Nothing was found.")
    assert answer_of(reply_with(asked, []))
