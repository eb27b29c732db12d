"""Items of a response, read as a conversation: who said what, and each function call beside its output.

Items are what clients and models sent: nothing is taken for granted about their shape. A call of a tool that the server
ran shows its arguments, and beside them what the tool returned. Agents become a tree of names, each with its task.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from engine.formats.base import Unanswered
from responses_app.extensions.console.watch.text import (
    FOLDED,
    Clipped,
    PageRoom,
    PictureOf,
    ShownPicture,
    own_picture,
    pretty,
    visible,
)
from responses_app.protocol.items.calls import is_output
from responses_app.protocol.items.offers import AGENT_CALL, AGENT_MESSAGE, ROOT, agent_of


class ServerCall(NamedTuple):
    """A call of a tool that a server ran."""

    title: str  # the tool, as people read it
    asked: object  # what it was called with
    gave: object | None  # None where the item does not say what came of the call
    pictures: Sequence[Any] = ()  # parts beside that


def _search(item: Any) -> ServerCall:
    details = item.get("action")
    action = dict(details) if isinstance(details, dict) else {}
    sources = action.pop("sources", None)
    urls = [each.get("url") for each in sources if isinstance(each, dict)] if isinstance(sources, list) else None
    kind = str(action.pop("type", "")).replace("_", " ")
    query = next((action[name] for name in ("query", "pattern", "url") if action.get(name)), None)
    where = f"\n{action['url']}" if action.get("pattern") and action.get("url") else ""
    return ServerCall(f"web search: {kind}", f"{query or ''}{where}", item.get("error") or urls)


def _mcp(item: Any) -> ServerCall:
    title = ".".join(str(item[name]) for name in ("server_label", "name") if item.get(name))
    gave = item.get("output")
    pictures, rest = _split(gave)
    if pictures:
        gave = _joined([_string(each, "text") or each for each in rest])
    return ServerCall(title, item.get("arguments"), item.get("error") or gave, pictures)


def _code(item: Any) -> ServerCall:
    if not isinstance(item.get("outputs"), list):
        return ServerCall("python", item.get("code"), item.get("error"))
    pictures, rest = _split(item["outputs"])
    gave = _joined([each.get("logs") if isinstance(each, dict) and "logs" in each else each for each in rest])
    return ServerCall("python", item.get("code"), item.get("error") or gave, pictures)


def _image(item: Any) -> ServerCall:
    made = item.get("result")
    kind = item.get("output_format") if item.get("output_format") in ("png", "jpeg", "webp") else "png"
    pictures = [{"type": "image", "url": f"data:image/{kind};base64,{made}"}] if isinstance(made, str) else []
    title = f"image: {item.get('action') or 'generate'}"
    return ServerCall(title, item.get("revised_prompt"), item.get("error"), pictures)


def _title_of(tool: object) -> str:
    """Return what a tool, a namespace or a server with tools is called."""
    name = _string(tool, "name") or _string(tool, "server_label") or _string(tool, "type")
    members = [_string(each, "name") for each in as_list(tool.get("tools") if isinstance(tool, dict) else None)]
    return f"{name}: {', '.join(members[:MAX_PARTS])}" if members else name


READERS: Mapping[str, Callable[[Any], ServerCall]] = {
    "web_search_call": _search,
    "mcp_call": _mcp,
    "code_interpreter_call": _code,
    "image_generation_call": _image,
}


ROLES = {"user": "User", "assistant": "Assistant", "developer": "Developer", "system": "System"}
ACTIONS = {  # calls whose tools have no name, and the field that says what was asked for
    "local_shell_call": "action",
    "shell_call": "action",
    "apply_patch_call": "operation",
    "tool_search_call": "arguments",
    AGENT_CALL: "arguments",  # of agents, which says by its `action` what is asked for
}
MAX_ITEMS = 200  # shown of each list of items
ONE_LINE = 80  # characters of JSON that need no second one
MAX_PARTS = 50  # shown of an item


@dataclass(slots=True)
class Block:
    """An item on the page."""

    kind: str  # how it is drawn: message, reasoning, call, output or other
    who: str  # the side it stands on
    title: str
    item_id: str = ""
    status: str = ""  # "" for completed, which needs no word
    note: str = ""  # a word beside its title
    texts: list[Clipped] = field(default_factory=list)
    chips: list[str] = field(default_factory=list)  # parts that are not text, by name
    pictures: list[ShownPicture] = field(default_factory=list)
    code: Clipped | None = None  # arguments, or an output
    agent: str = ""  # the name of the agent below the root whose item it is
    call_id: str = ""
    answer: "Block | None" = None  # a call's output
    answer_in: str = ""  # the response whose input had it

    @property
    def length(self) -> str:
        """How much was said."""
        return f"{sum(len(text.shown) + len(text.folded) + text.lost for text in self.texts):,}"

    @property
    def shown_call_id(self) -> str:
        """The call's id, which a client may have made."""
        return visible(self.call_id)[:80]


class PageTranscript:
    """Reads items in the order of the conversation; outputs find their calls in any earlier ones.

    `picture_of` finds the picture of a part: where it knows of none, the part is shown by its name.
    """

    def __init__(self, room: PageRoom | None = None, *, picture_of: PictureOf = own_picture) -> None:
        self.room = room or PageRoom()
        self._picture_of = picture_of
        self._calls = Unanswered[Block]()

    def read(self, items: object) -> list[Block]:
        """Return the blocks of items; an output whose call was read stands with the call."""
        blocks = (self._block(item) for item in as_list(items)[-MAX_ITEMS:])
        return [block for block in blocks if not self._answers(block)]

    def unanswered(self) -> list[str]:
        """Return the `call_id`s of calls whose output was not read."""
        return [call.call_id for call in self._calls.left()]

    def read_answers(self, items: object, response_id: str) -> None:
        """Look for outputs of calls in the input of a later response."""
        for item in as_list(items):
            call = self._calls.answer(_string(item, "call_id")) if is_output(_string(item, "type")) else None
            if call is not None:
                call.answer, call.answer_in = self._block(item), response_id

    def _answers(self, block: Block) -> bool:
        if block.kind == "call" and block.call_id:
            self._calls.add(block.call_id, block)
        elif block.kind == "message" and block.who == "user":
            self._calls.next_turn()
        if block.kind != "output":
            return False
        call = self._calls.answer(block.call_id)
        if call is None:
            return False
        call.answer = block
        return True

    def _block(self, item: Any) -> Block:
        kind = _string(item, "type") or ("message" if isinstance(item, dict) and "role" in item else "")
        if kind == "message":
            block = self._message(item)
        elif kind == "reasoning":
            block = self._reasoning(item)
        elif kind in ("function_call", "custom_tool_call"):
            block = self._call(item)
        elif kind in ACTIONS:
            block = self._action(kind, item)
        elif kind in READERS:
            block = self._of_server(READERS[kind](item))
        elif kind == AGENT_MESSAGE:
            block = self._agent_message(item)
        else:
            block = self._output(kind, item) if is_output(kind) else self._other(kind, item)
        block.item_id, status = visible(_string(item, "id")), _string(item, "status")
        block.status = "" if status == "completed" else visible(status)
        agent = agent_of(item) if isinstance(item, dict) else ROOT
        block.agent = "" if agent == ROOT else visible(agent)[:200]
        return block

    def _message(self, item: Any) -> Block:
        role = _string(item, "role")
        block = Block("message", role if role in ROLES else "other", ROLES.get(role, visible(role) or "Message"))
        block.note = "commentary" if item.get("phase") == "commentary" else ""
        self._say(block, item.get("content"))
        return block

    def _reasoning(self, item: Any) -> Block:
        block = Block("reasoning", "assistant", "Reasoning")
        self._say(block, item.get("content"))
        if not block.texts:
            self._say(block, item.get("summary"))
            block.note = "summary" if block.texts else ""
        if not block.texts:
            block.note = "encrypted" if item.get("encrypted_content") else "empty"
        return block

    def _call(self, item: Any) -> Block:
        name = ".".join(part for part in (_string(item, "namespace"), _string(item, "name")) if part)
        block = Block("call", "assistant", visible(name) or "function call", call_id=_string(item, "call_id"))
        written = item.get("arguments", item.get("input", ""))
        block.code = self.room.clip(_readable(written))
        return block

    def _action(self, kind: str, item: Any) -> Block:
        title = _string(item, "action") if kind == AGENT_CALL else kind.removesuffix("_call")
        block = Block("call", "assistant", visible(title)[:80], call_id=_string(item, "call_id"))
        block.code = self.room.clip(_readable(item.get(ACTIONS[kind], "")))
        return block

    def _agent_message(self, item: Any) -> Block:
        names = [visible(_string(item, name))[:200] for name in ("author", "recipient")]
        block = Block("message", "other", f"{names[0]} → {names[1]}")
        self._say(block, item.get("content"))
        return block

    def _of_server(self, call: ServerCall) -> Block:
        block = Block("call", "assistant", visible(call.title)[:160])
        block.code = self.room.clip(_readable(call.asked))
        if call.gave is not None or call.pictures:
            block.answer = Block("output", "tool", "Output")
            if call.gave:
                block.answer.code = self.room.clip(_readable(call.gave))
            self._say(block.answer, call.pictures, alt="What the tool drew")
        return block

    def _output(self, kind: str, item: Any) -> Block:
        call_id = _string(item, "call_id")
        block = Block("output", "tool", f"Output of {visible(call_id)[:80]}", call_id=call_id)
        if kind not in ("function_call_output", "custom_tool_call_output"):
            block.note = visible(kind)
        output = item.get("output")
        if kind == "tool_search_output":
            block.title, output = "Tools found", [_title_of(tool) for tool in as_list(item.get("tools"))]
        parts = _parts(output)
        if parts is not None:
            self._say(block, parts, alt="Image in the output")
        else:
            block.code = self.room.clip(_readable(output))
        return block

    def _other(self, kind: str, item: Any) -> Block:
        block = Block("other", "other", visible(kind)[:80] or "An item without a type")
        block.call_id = _string(item, "call_id")
        block.code = self.room.clip(pretty(item), shown=FOLDED, folded=0)
        if block.call_id and kind.endswith("_call"):
            block.kind = "call"
        return block

    def _say(self, block: Block, content: object, *, alt: str = "") -> None:
        """Add a message's parts: texts as they are, pictures where they can be shown, everything else by name."""
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        parts = as_list(content)
        for part in parts[:MAX_PARTS]:
            text = _string(part, "text") or _string(part, "refusal")
            if text:
                block.texts.append(self.room.clip(text))
            if _string(part, "refusal"):
                block.note = "refusal"
            if not text:
                self._hang(block, part, alt or f"Image from the {block.title.lower()}")
        if len(parts) > MAX_PARTS:
            block.chips.append(f"{len(parts) - MAX_PARTS:,} more parts")

    def _hang(self, block: Block, part: object, alt: str) -> None:
        """Add a part that is no text: its picture, if it has one that can be shown and there is room, else its name."""
        url = self._picture_of(part) if isinstance(part, dict) else None
        name = "A screenshot" if _string(part, "type") == "computer_screenshot" else _string(part, "filename") or alt
        picture = self.room.hang(url, visible(name)[:120]) if url else None
        if picture is None:
            block.chips.append(_part_name(part, url))
        else:
            block.pictures.append(picture)


def as_list(value: object) -> Sequence[Any]:
    """Return a list as it is, and nothing for what is not a list."""
    return value if isinstance(value, list) else ()


def as_dict(value: object) -> dict[str, Any]:
    """Return an object as it is, and an empty one for what is none."""
    return value if isinstance(value, dict) else {}


def _string(item: object, name: str) -> str:
    value = item.get(name) if isinstance(item, dict) else None
    return value if isinstance(value, str) else ""


def _parts(output: object) -> Sequence[Any] | None:
    """Return the parts of what a call gave; None where it has none, and is text or JSON."""
    if isinstance(output, str) and output.startswith("data:image/"):
        return [{"type": "image", "url": output}]
    if isinstance(output, dict) and output.get("type") == "computer_screenshot":
        return [output]
    return output if isinstance(output, list) else None


def _split(output: object) -> tuple[list[Any], list[Any]]:
    """Return the images of what a call gave, and the rest of its parts."""
    pictures: list[Any] = []
    rest: list[Any] = []
    for part in _parts(output) or ():
        (pictures if _string(part, "type") in ("image", "input_image") else rest).append(part)
    return pictures, rest


def _joined(texts: list[Any]) -> object:
    """Return texts as one, or what else there is as it is."""
    return "\n".join(texts) if all(isinstance(each, str) for each in texts) else texts


def _part_name(part: object, data_url: str | None) -> str:
    kind = _string(part, "type") or "part"
    if kind in ("input_text", "output_text", "text"):
        return "empty text"
    names = [_string(part, each) for each in ("filename", "file_id", "image_url", "url")]
    name = next((each for each in names if each and not each.startswith("data:")), "")
    if data_url and not name:
        name = f"not shown here ({len(data_url):,} characters)"
    return visible(f"{kind}: {name}" if name else kind)[:120]


def _readable(text: object) -> str:
    """Return JSON to read, on one line where it is short, and anything else as it is."""
    if not isinstance(text, str):
        return pretty(text)
    # What is long is not worth parsing: a page shows only its beginning.
    if len(text) > 1_000_000 or text[:1] not in ("{", "["):
        return text
    try:
        value = json.loads(text)
        # Written anew it may be shorter: spaces between its parts are lost.
        line = json.dumps(value, ensure_ascii=False) if len(text) < 2 * ONE_LINE else ""
        return line if 0 < len(line) <= ONE_LINE else pretty(value)
    except (ValueError, RecursionError):
        return text


MAX_AGENTS = 200  # shown of a response
TASK_LENGTH = 70  # characters of a task


@dataclass(slots=True)
class AgentNode:
    """An agent below the root."""

    name: str  # as people read it: `/root/berlin`
    depth: int  # below the root, which is at 0
    task: str = ""  # the beginning of the first one
    items: int = 0  # that it has said or read
    answers: int = 0  # how often it has answered


def agents_of(output: object) -> list[AgentNode]:
    """Return the agents of a response by the items of its output, each behind the one that has started it."""
    nodes: dict[str, AgentNode] = {}
    for item in as_list(output):
        if not isinstance(item, dict):
            continue
        is_letter = item.get("type") == AGENT_MESSAGE
        name = str(item.get("recipient")) if is_letter else agent_of(item)
        if name == ROOT or (name not in nodes and len(nodes) == MAX_AGENTS):
            continue
        node = nodes.setdefault(name, AgentNode(visible(name)[:200], name.count("/") - 1))
        node.items += 1
        node.answers += item.get("phase") == "final_answer"
        if is_letter and not node.task:
            words = " ".join(_string(part, "text") for part in as_list(item.get("content"))).split()
            node.task = visible(" ".join(words)[:TASK_LENGTH])
    return [nodes[name] for name in sorted(nodes)]
