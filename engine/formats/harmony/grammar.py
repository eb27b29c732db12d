"""The grammar of a Harmony turn, and whether tokens follow it.

    turn      = { thought | call <|end|> next | thought } last
    thought   = <|channel|> (analysis | commentary) <|message|> text <|end|> next
    next      = <|start|> assistant
    last      = call | answer                       (a call alone where the turn must call)
    call      = (to=NAME <|channel|> CHANNEL | <|channel|> CHANNEL to=NAME) [type] <|message|> what the tool takes
    answer    = <|channel|> final [type] <|message|> what an answer is
    type      = json | code | text, each bare or behind <|constrain|>

The token that stops the model is not part of it: xgrammar takes a stop token only where the grammar is complete, and
never as a part of a grammar. So `<|call|>` may stand behind an answer and `<|return|>` behind a call; the parser lets
the header decide what a message is. A call may stand on any channel but `final`, as the parser reads it.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby

from engine.formats.harmony.encoding import (
    CHANNEL,
    CONSTRAIN,
    END,
    ENDOFTEXT,
    MESSAGE,
    SPECIAL_TOKENS,
    START,
    STOP_TOKENS,
    decode_tokens,
    token_bytes,
)
from engine.formats.harmony.header import ANALYSIS, ASSISTANT, COMMENTARY, FINAL
from engine.formats.harmony.shapes import (
    Chars,
    Held,
    Many,
    Maybe,
    OneOf,
    Shape,
    Special,
    Step,
    is_inside,
    row,
    to_structural_tag,
)
from engine.grammar import AnyText, CallRule, Content, TurnGrammar, TurnRules

FUNCTIONS = "functions."  # the namespace of a request's own functions
MAX_REMEMBERED_CHARACTERS = 128 * 1024  # of the schemas and grammars of one turn
MAX_SHOWN = 60  # tokens of a completion in a sentence about it

_KINDS = ("json", "code", "text")
_LAST = frozenset((*STOP_TOKENS, ENDOFTEXT))
_SPECIAL = frozenset(SPECIAL_TOKENS)


def turn_grammar(rules: TurnRules, behind: Sequence[int] = ()) -> TurnGrammar | None:
    """Return the grammar of a turn, or of what is left of it `behind` tokens that were sampled already.

    None where those tokens break it: then nothing can be held from there. Where they end within a content that has a
    rule, that content goes on without it, and the grammar is `loose`. Raises `GrammarRefused` for a Lark grammar that
    cannot be used.
    """
    if behind:
        left, _ = _follow(turn_shape(rules), behind)
        return TurnGrammar(rules, to_structural_tag(left), loose=any(map(is_inside, left))) if left else None
    if _size(rules) > MAX_REMEMBERED_CHARACTERS:
        return _whole_grammar.__wrapped__(rules)
    return _whole_grammar(rules)


def problem_of_turn(rules: TurnRules, tokens: Sequence[int], *, cut: bool = False) -> str | None:
    """Say what in a completion, stop token included, breaks the rules; None for nothing. `cut`: it is a beginning."""
    ended = bool(tokens) and tokens[-1] in _LAST
    said = tokens[:-1] if ended else tokens
    left, problem = _follow(turn_shape(rules), said)
    if problem is not None:
        return problem
    if (cut and not ended) or any(shape.may_end() for shape in left):
        return None
    return f"it ends too early{_because(left)}"


@lru_cache(maxsize=64)  # with MAX_REMEMBERED_CHARACTERS: at most 8 MiB, twice
def _whole_grammar(rules: TurnRules) -> TurnGrammar:
    return TurnGrammar(rules, to_structural_tag([turn_shape(rules)]))


def turn_shape(rules: TurnRules) -> Shape:
    """Return what a turn may be, as the file's comment draws it."""
    onward = row(Special(END), _NEXT)
    calls = [_call(list(same), content) for content, same in groupby(sorted(rules.calls, key=_order), _content)]
    before = OneOf((row(_THOUGHT, onward), *(row(call, onward) for call in calls))) if calls else row(_THOUGHT, onward)
    last = calls if rules.must_call else [*calls, _answer(rules.answer)]
    return row(Many(before), last[0] if len(last) == 1 else OneOf(tuple(last)))


def _order(rule: CallRule) -> str:
    return repr(rule.content)


def _content(rule: CallRule) -> Content:
    return rule.content


def _size(rules: TurnRules) -> int:
    contents = (rules.answer, *(rule.content for rule in rules.calls))
    return sum(len(repr(content)) for content in contents)


def _call(rules: Sequence[CallRule], content: Content) -> Shape:
    """Return a call of one of several tools that take the same."""
    names = [Chars((rule.name if rule.hosted else FUNCTIONS + rule.name).encode()) for rule in rules]
    name = names[0] if len(names) == 1 else OneOf(tuple(names))
    to = row(Chars(b" to="), name)
    return row(OneOf((row(to, _CHANNEL), row(_CHANNEL, to))), _TYPE, Special(MESSAGE), Held(content))


def _answer(content: Content) -> Shape:
    return row(Special(CHANNEL), Chars(FINAL.encode()), _TYPE, Special(MESSAGE), Held(content))


_NEXT = row(Special(START), Chars(ASSISTANT.encode()))
_CHANNEL = row(Special(CHANNEL), OneOf((Chars(COMMENTARY.encode()), Chars(ANALYSIS.encode()))))
_THOUGHT = row(_CHANNEL, Special(MESSAGE), Held(AnyText()))
_TYPE = Maybe(
    OneOf(
        (
            row(Chars(b" "), OneOf(tuple(Chars(kind.encode()) for kind in _KINDS))),
            row(
                Maybe(Chars(b" ")),
                Special(CONSTRAIN),
                OneOf(tuple(Chars(kind.encode()) for kind in _KINDS)),
            ),
        )
    )
)


def _follow(shape: Shape, tokens: Sequence[int]) -> tuple[list[Shape], str | None]:
    """Return what may follow some tokens; if nothing may, say where they go wrong."""
    left, read = [shape], 0
    for step, size in _steps(tokens):
        after = [each for each, rest in _advanced(left, step) if rest == b""]
        if not after:
            shown = decode_tokens(tokens[max(0, read - MAX_SHOWN) : read])
            found = decode_tokens(tokens[read : read + size])
            return [], f"{found[:200]!r} cannot follow {shown!r}{_because(left)}"
        left, read = list(dict.fromkeys(after)), read + size
    return left, None


def _advanced(shapes: Sequence[Shape], step: Step) -> Iterator[tuple[Shape, Step]]:
    for shape in shapes:
        yield from shape.advance(step)


def _because(shapes: Sequence[Shape]) -> str:
    problem = next(filter(None, (shape.problem() for shape in shapes)), "")
    return f": {problem}" if problem else ""


def _steps(tokens: Sequence[int]) -> Iterator[tuple[Step, int]]:
    """Yield special tokens, and the bytes of the ordinary ones between them, each with its number of tokens."""
    text, size = bytearray(), 0
    for token in tokens:
        if token not in _SPECIAL:
            text += token_bytes(token)
            size += 1
            continue
        if size:
            yield bytes(text), size
            text, size = bytearray(), 0
        yield token, 1
    if size:
        yield bytes(text), size
