"""The demo engine's calls of the server's own tools, and of agents, for which the user's text asks in so many words.

`python: CODE` has code run, `program: CODE` a program that calls tools, `shell: COMMAND` a command, and each line
behind it one more; `draw X` has an image made, `search the files for X` finds parts of files and cites the first, and
`search for X` searches the web, opens the first page that was found and cites it. Each only where the server has
offered the tool: of a browser and of `python` the system message tells, of all others the developer message.

`agent NAME: TASK`, on a line of its own, starts an agent:

    agent berlin: count to 3        it starts /root/berlin, which counts to 3
    agent a: agent b: count to 2    it starts /root/a, which starts /root/a/b

It starts all that the text names, waits until each has answered, and says what they said. An agent reads its task as
the text of the user, so that it can do all that the demo engine can.
"""

import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from engine.backends.demo.arguments import read_server_tools
from engine.backends.simulated import PromptTranscript, TranscriptMessage

MAX_QUERY = 200  # characters
MAX_PROMPT = 500  # characters, of an image
MAX_QUOTE = 300  # characters of what a search has found

# `python: print(1)` on a line of its own, or a fenced block behind `python:`.
_PYTHON = re.compile(
    r"(?:^|\n)\s*python:\s*(?:```(?:python)?\n(?P<fenced>.*?)```|(?P<plain>.+))", re.DOTALL | re.IGNORECASE
)
# `program: print(call_tool("f"))`, as `python:`.
_PROGRAM = re.compile(_PYTHON.pattern.replace("python:", "program:", 1), _PYTHON.flags)
# By the tools that are called with code; `program` is a namespace, and its only tool.
_CODE = {
    "python": ("The user wants code to be run.", _PYTHON),
    "program": ("The user wants a program to be run.", _PROGRAM),
}
# `shell: ls` on a line of its own: all that follows, a command each line.
_SHELL = re.compile(r"(?:^|\n)\s*shell:\s*(?P<commands>.+)", re.DOTALL | re.IGNORECASE)
_SHELL_TOOL = "shell.exec"
# `draw a cat`, `Draw me a cat`: up to the end of the sentence.
_DRAW = re.compile(r"\bdraw(?: me)? ([^\n.?!]{1,500})", re.IGNORECASE)
_IMAGES = "image_generation"  # the namespace
# `search the files for X`, `search my documents for X`.
_SEARCH_FILES = re.compile(r"\bsearch (?:the|my|our) (?:files?|documents?) for ([^\n.?!]{1,200})", re.IGNORECASE)
_FILE_SEARCH = "file_search.msearch"
# One result: `[1:0] name`, then its text, to the end.
_RESULT = re.compile(r"\[(\d+:\d+)\] (.*)\n((?:.*\n?)*)")
# `search for X`, `search the web for X`.
_SEARCH_WEB = re.compile(r"\bsearch(?: the web)? for ([^\n.?!]{1,200})", re.IGNORECASE)
# `[3] ` at the beginning of a page: the cursor that it is cited by.
_CURSOR = re.compile(r"\[(\d+)\] ")
# `L12: text`, a line of a page with its number.
_LINE = re.compile(r"^L(\d+): (.*\S)", re.MULTILINE)
_FIRST_LINK = "【0†"
_TOOL_SEARCH = "tool_search"  # the namespace
# `call get_weather`, `call the tool crm.find`.
_CALL = re.compile(r"\bcall (?:the )?(?:tool |function )?([A-Za-z0-9_.-]{0,127}[A-Za-z0-9_])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class DemoAnswer:
    """A thought, then text for the user."""

    thought: str
    text: str


@dataclass(frozen=True, slots=True)
class DemoCall:
    """A thought, then a call of a function."""

    thought: str  # what the engine thinks before
    name: str  # of the tool, as its declaration names it
    arguments: str  # JSON
    hosted: bool = False  # it is a tool of the server's
    freeform: bool = False  # its arguments are text as it is


def of_server_tools(transcript: PromptTranscript, text: str) -> DemoAnswer | DemoCall | None:
    """Return what is done with the server's own tools, None where the user wants nothing of them."""
    return (
        _code(transcript, text, "python", declared="\n## python\n", by="system")
        or _code(transcript, text, "program", declared="namespace program {", by="developer")
        or _shell(transcript, text)
        or _file_search(transcript, text)
        or _image(transcript, text)
        or _browser(transcript, text)
    )


def _code(transcript: PromptTranscript, text: str, tool: str, *, declared: str, by: str) -> DemoCall | None:
    """Run the code behind `python:` or `program:`, the rest of the text or what is fenced there, once."""
    thought, pattern = _CODE[tool]
    code = pattern.search(text)
    is_offered = any(declared in message.text() for message in transcript.of(by))
    if code is None or not is_offered or tool in _called(transcript):
        return None
    plain = (code["fenced"] or code["plain"] or "").strip()
    return DemoCall(thought, tool, plain, hosted=True, freeform=True)


def _shell(transcript: PromptTranscript, text: str) -> DemoCall | None:
    """Run the commands behind `shell:`, all at once, and once."""
    asked = _SHELL.search(text)
    names = (name for message in transcript.of("developer") for name, _ in read_server_tools(message.text()))
    if asked is None or _SHELL_TOOL not in names or _SHELL_TOOL in _called(transcript):
        return None
    arguments = {"commands": [line.strip() for line in asked["commands"].splitlines() if line.strip()]}
    return DemoCall("The user wants commands to be run.", _SHELL_TOOL, _json(arguments), hosted=True)


def _image(transcript: PromptTranscript, text: str) -> DemoCall | None:
    """Make an image of what is behind `draw`, or of the text where the user names the tool, once."""
    draw = _DRAW.search(text)
    if draw is None and not re.search(rf"\b{_IMAGES}\b(?!\.)", text):
        return None
    names = (name for message in transcript.of("developer") for name, _ in read_server_tools(message.text()))
    tool = next((name for name in names if name.startswith(f"{_IMAGES}.")), None)
    if tool is None or any((name or "").startswith(f"{_IMAGES}.") for name in _called(transcript)):
        return None
    prompt = " ".join((draw[1] if draw else text).split())[:MAX_PROMPT]
    return DemoCall("The user wants an image.", tool, json.dumps({"prompt": prompt}), hosted=True)


def _file_search(transcript: PromptTranscript, text: str) -> DemoAnswer | DemoCall | None:
    query = _query(_SEARCH_FILES, text, "namespace file_search {", transcript.of("developer"))
    if not query:
        return None
    shown = [message for message in transcript.since_last_user() if message.role == _FILE_SEARCH]
    if not shown:
        return _search("The user wants the files searched.", _FILE_SEARCH, {"queries": [query]})
    results = shown[-1].text()
    first = _RESULT.match(results)
    if first is None:
        answer = f'The demo engine searched the files for "{query}", and was told: {results[:MAX_QUOTE]}'
    else:
        mark, name, part = first.groups()
        # Up to the next result, whose `[` stands behind an empty line.
        quote = part.partition("\n\n[")[0].strip()[:MAX_QUOTE]
        answer = f'The demo engine searched the files for "{query}". {name} says: {quote}【{mark}†{name}】'
    return DemoAnswer("The files have said something. I tell the user.", answer)


def _browser(transcript: PromptTranscript, text: str) -> DemoAnswer | DemoCall | None:
    query = _query(_SEARCH_WEB, text, "\nnamespace browser {", transcript.of("system"))
    if not query:
        return None
    shown = [message for message in transcript.since_last_user() if message.role.startswith("browser.")]
    if not shown:
        return _search("The user wants the web searched.", "browser.search", {"query": query})
    page = shown[-1].text()
    if len(shown) == 1 and _FIRST_LINK in page:
        return _search("The user wants the web searched.", "browser.open", {"id": 0})
    cursor, lines = _CURSOR.match(page), _LINE.findall(page)
    if cursor is None or not lines:
        answer = f'The demo engine searched for "{query}", and was told: {page[:MAX_QUOTE]}'
    else:
        title = page[cursor.end() :].partition("\n")[0]
        # Brackets of citations in the text of a page would end ours.
        quote = " ".join(line for _, line in lines)[:MAX_QUOTE].replace("【", "[").replace("】", "]")
        cited = f"【{cursor[1]}†L{lines[0][0]}-L{lines[min(len(lines), 3) - 1][0]}】"
        answer = f'The demo engine searched for "{query}" and opened {title}. It says: {quote}{cited}'
    return DemoAnswer("The web has said something. I tell the user.", answer)


def search_for_tools(transcript: PromptTranscript, text: str, known: Collection[str]) -> DemoCall | None:
    """Look for the tools that the user's text wants called and that are not known, each once."""
    if not any(f"namespace {_TOOL_SEARCH} {{" in message.text() for message in transcript.of("developer")):
        return None
    name = f"{_TOOL_SEARCH}.search"
    searched = " ".join(message.text() for message in transcript.since_last_user() if message.called == name)
    for wanted in _CALL.findall(text):
        arguments = json.dumps({"query": wanted})
        if wanted not in known and arguments not in searched:
            return DemoCall(f"I am not shown the tool {wanted}. I look for it.", name, arguments, hosted=True)
    return None


def _query(pattern: re.Pattern[str], text: str, declaration: str, messages: Iterable[TranscriptMessage]) -> str:
    """Return what the user wants searched; "" for nothing, and where none of the messages declares the tool."""
    match = pattern.search(text)
    query = match[1].strip()[:MAX_QUERY] if match else ""
    return query if query and any(declaration in message.text() for message in messages) else ""


def _json(arguments: object) -> str:
    return json.dumps(arguments, ensure_ascii=False)


def _search(thought: str, name: str, arguments: object) -> DemoCall:
    return DemoCall(thought, name, _json(arguments), hosted=True)


def _called(transcript: PromptTranscript) -> Collection[str | None]:
    return {message.called for message in transcript.since_last_user()}


_AGENT = re.compile(r"^[ \t]*agent ([a-z0-9_]{1,64}):[ \t]*(\S.*)$", re.MULTILINE)
_SPAWN, _WAIT = "agents.spawn_agent", "agents.wait_agent"
_IS_AGENT, _TASK = "You are the agent ", "\nTask: "
_LETTER = re.compile(r"Message from the agent (\S+):\n(.*)", re.DOTALL)
_NOTHING_COMES = ("No agent is working.", "No message came")  # what a wait says that was for nothing
MAX_ANSWER = 500  # characters of what one agent says


def as_its_agent(transcript: PromptTranscript) -> PromptTranscript:
    """Return the conversation as the agent reads it that is asked: with its task as the last message of the user."""
    messages = transcript.messages
    for place in reversed(range(len(messages))):
        if messages[place].role == "user":
            break
        task = _task(messages, place)
        if task is not None:
            return transcript.with_user(messages[place], task)
    return transcript


def _task(messages: tuple[TranscriptMessage, ...], place: int) -> str | None:
    """Return the task that a message gives the agent; None where it gives none."""
    message = messages[place]
    if message.output_of == _SPAWN and (text := message.text()).startswith(_IS_AGENT):
        return text.partition(_TASK)[2]
    before = messages[place - 1] if place else None
    # A message to an agent that has answered, and rests, is its next task.
    if message.role == "developer" and before is not None and before.role == "assistant" and before.called is None:
        letter = _LETTER.fullmatch(message.text())
        return letter[2] if letter else None
    return None


def of_agents(transcript: PromptTranscript, text: str) -> DemoAnswer | DemoCall | None:
    """Return what is done with agents; None where the text starts none."""
    wanted = _AGENT.findall(text)
    if not wanted or not any("namespace agents {" in message.text() for message in transcript.of("developer")):
        return None
    said = transcript.since_last_user()
    started = sum(message.called == _SPAWN for message in said)
    if started < len(wanted):
        name, task = wanted[started]
        arguments = json.dumps({"task_name": name, "message": task}, ensure_ascii=False)
        return DemoCall(f"The user wants the agent {name}.", _SPAWN, arguments, hosted=True)
    letters = [letter for message in said if (letter := _LETTER.fullmatch(message.text()))]
    starts = [message.text() for message in said if message.output_of == _SPAWN]
    errors = [text for text in starts if text.startswith("Error")]
    waits = [message.text() for message in said if message.output_of == _WAIT]
    if len(letters) < len(starts) - len(errors) and not any(text.startswith(_NOTHING_COMES) for text in waits):
        return DemoCall("I wait for the agents.", _WAIT, "{}", hosted=True)
    answers = [f"{letter[1]}: {' '.join(letter[2].split())[:MAX_ANSWER]}" for letter in letters] or ["nothing."]
    return DemoAnswer("That is all of them. I tell the user.", " ".join(["The agents said:", *answers, *errors]))
