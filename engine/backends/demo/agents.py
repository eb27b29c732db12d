"""What the demo engine does with agents: `agent NAME: TASK` in the user's text, on a line of its own, starts one.

    agent berlin: count to 3        it starts /root/berlin, which counts to 3
    agent a: agent b: count to 2    it starts /root/a, which starts /root/a/b

It starts all that the text names, waits until each has answered, and says what they said. An agent reads its task as
the text of the user, so that it can do all that the demo engine can.
"""

import json
import re

from engine.backends.demo.tools import DemoAnswer, DemoCall
from engine.backends.transcript import PromptTranscript, TranscriptMessage

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
