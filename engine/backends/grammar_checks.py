"""Grammars that an engine has tried already: each is tried once, and what came of it is remembered."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from hashlib import blake2b

from engine.errors import EngineOverloaded, GenerationFailed, GrammarRefused
from engine.grammar import TurnGrammar

MAX_CHARACTERS = 1024 * 1024  # of one grammar, as the engine is given it
MAX_REMEMBERED = 1024  # grammars; an answer is a few dozen bytes
COMPILE_SECONDS = 60.0  # that one may take: bounded strings take 2 to 4 s on two cores, once


class GrammarChecks:
    """Asks `attempt` about a grammar: it compiles it, or raises `GrammarRefused` or `GenerationFailed`."""

    def __init__(self, attempt: Callable[[TurnGrammar], Awaitable[None]]) -> None:
        self._attempt = attempt
        self._known: OrderedDict[bytes, str] = OrderedDict()  # the reason why one is refused; "" for the good ones

    async def check(self, grammar: TurnGrammar) -> None:
        """Return if the engine can hold a model to a grammar; raises `GrammarRefused`."""
        tag = grammar.structural_tag
        if len(tag) > MAX_CHARACTERS:
            raise GrammarRefused(
                f"The tools and the answer's format make a grammar of {len(tag)} characters; at most {MAX_CHARACTERS} "
                "are allowed."
            )
        key = blake2b(tag.encode(), digest_size=16).digest()
        if key not in self._known:
            self._remember(key, await self._reason(grammar))
        self._known.move_to_end(key)
        if self._known[key]:
            raise GrammarRefused(self._known[key])

    async def _reason(self, grammar: TurnGrammar) -> str:
        try:
            async with asyncio.timeout(COMPILE_SECONDS):
                await self._attempt(grammar)
        except TimeoutError:
            raise EngineOverloaded(f"A grammar was not compiled within {COMPILE_SECONDS:g} s.") from None
        except GrammarRefused as error:
            return error.reason
        except GenerationFailed as error:
            return f"The engine cannot use the grammar that the tools and the answer's format make: {error}"
        return ""

    def _remember(self, key: bytes, reason: str) -> None:
        self._known[key] = reason
        if len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)
