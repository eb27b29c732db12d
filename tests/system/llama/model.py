"""The models of these tests: one with gpt-oss's vocabulary, and what it says."""

from pathlib import Path

from engine.formats.chat_template.vocabulary import BYTE_OF
from engine.formats.harmony.encoding import RETURN, SPECIAL_TOKENS, encode_harmony, encode_text, token_bytes
from engine.formats.harmony.prompt import generation_start
from tests.system.llama.gguf import Vocabulary, follows, write_model

CONTEXT = 16_384  # tokens
SIZE = 201_088  # the tokens of gpt-oss in llama.cpp
_SPELLED = {byte: character for character, byte in BYTE_OF.items()}


def words(number: int, begin: int = 3000) -> list[int]:
    """Return different tokens that are a word each: `number` of them, from the id `begin` on."""
    found = []
    for token in range(begin, SPECIAL_TOKENS.start):
        piece = token_bytes(token)
        if len(piece) > 4 and piece[:1] == b" " and piece[1:].isalpha() and piece[1:].islower():
            found.append(token)
        if len(found) == number:
            break
    return found


def harmony_vocabulary() -> Vocabulary:
    tokens = ["".join(_SPELLED[byte] for byte in token_bytes(token)) for token in range(SPECIAL_TOKENS.start)]
    tokens += [token_bytes(token).decode() for token in range(SPECIAL_TOKENS.start, SIZE)]
    template = "{{ messages[0].content }}"
    return Vocabulary(tokens, range(SPECIAL_TOKENS.start, SIZE), end=RETURN, pre="gpt-4o", template=template)


def cue(word: str) -> int:
    """Return the token of a word that tells the model what to say. No text of a prompt has it by chance."""
    (token,) = encode_text(f" {word}")
    return token


def _final(tokens: list[int]) -> list[int]:
    return [*encode_harmony("<|channel|>final<|message|>"), *tokens, RETURN]


SHORT, LONG, ENDLESS, EMOJI, CALLS, RANDOM, SHELL = map(
    cue, ("brief", "lengthy", "endless", "emoji", "weather", "random", "laptop")
)
LONG_WORDS = words(205)
(DICE,) = words(1, 50_000)
_LOOP = words(5, 9000)
TURNS = {
    SHORT: _final(encode_text("Hello you")),
    LONG: _final(LONG_WORDS),
    ENDLESS: [*_final(_LOOP)[:-1], _LOOP[0]],
    EMOJI: _final(encode_text("A llama 🦙 and 喵 say 龘!")),
    CALLS: encode_harmony(
        '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city":"Paris"}<|call|>'
    ),
    # What the command prints has the cue of `SHORT` in it.
    SHELL: encode_harmony(
        "<|channel|>commentary to=functions.exec_command <|constrain|>json<|message|>"
        """{"cmd":"printf 'say br''ief' | tee note.txt"}<|call|>"""
    ),
    RANDOM: [*encode_harmony("<|channel|>final<|message|>"), DICE],
}


def write_harmony_model(folder: Path) -> Path:
    """Write the model; 1 s."""
    said = follows(TURNS, generation_start()[-1])
    return write_model(folder / "gpt-oss.gguf", harmony_vocabulary(), said, dice=DICE, context=CONTEXT)


def prompt(cue: int) -> list[int]:
    return [*encode_harmony(f"<|start|>user<|message|>Please say{spelled(cue)} now.<|end|>"), *generation_start()]


def spelled(cue: int) -> str:
    """Return a cue as text, with the space before it."""
    return token_bytes(cue).decode()


if __name__ == "__main__":
    import sys

    print(write_harmony_model(Path(sys.argv[1])))
