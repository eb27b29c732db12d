"""`Parts`: an object whose parts are made when they are first asked for, and which closes those that were made.

A part is a method under one of four decorators, which says when a part with an `aclose` is closed:

    early   where its owner does so by name
    duty    then, one after the other, each before those that are declared above it
    part    then, beside all others
    late    then, as the duties
"""

import asyncio
from collections.abc import Callable
from threading import RLock
from typing import Any, Generic, Self, TypeVar, overload

Made = TypeVar("Made")


class part(Generic[Made]):
    """A part that others use. It is made once, whichever threads ask for it; then it is an attribute as any other."""

    def __init__(self, make: Callable[[Any], Made]) -> None:
        self._make = make
        self._name = make.__name__
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, parts: None, owner: type) -> Self: ...
    @overload
    def __get__(self, parts: "Parts", owner: type) -> Made: ...

    def __get__(self, parts: "Parts | None", owner: type) -> Self | Made:
        if parts is None:
            return self
        made = vars(parts)
        with parts.making:
            if self._name not in made:
                made[self._name] = self._make(parts)
            part: Made = made[self._name]
            return part


class early(part[Made]):
    """A part that ends while others are still used by whoever is served."""


class duty(part[Made]):
    """A part that does something by itself, for which it uses others."""


class late(part[Made]):
    """A part that is told how the others end."""


class Parts:
    """The base of whatever has parts."""

    def __init__(self) -> None:
        self.making = RLock()  # for each thread: a part is made of others
        self._made: dict[Callable[[Any], Any], Any] = {}  # for extensions, by what makes it

    @classmethod
    def declared(cls, *kinds: type[part[Any]]) -> list[str]:
        """Return the names of the parts of these kinds: those of a base first, and else as they are written."""
        classes = (vars(each).items() for each in reversed(cls.__mro__))
        return [name for attributes in classes for name, each in attributes if type(each) in kinds]

    def make(self) -> None:
        """Make all parts that nobody has asked for yet."""
        for name in self.declared(early, duty, part, late):
            getattr(self, name)

    def made(self, make: Callable[[Self], Made]) -> Made:
        """Return what `make` makes of this. It is made once, and closed with the parts."""
        with self.making:
            if make not in self._made:
                self._made[make] = make(self)
            made: Made = self._made[make]
            return made

    async def close(self) -> None:
        """Close what was made, but for the early parts."""
        for each in self._closable(duty):
            await each.aclose()
        of_extensions = [each for each in self._made.values() if hasattr(each, "aclose")]
        await asyncio.gather(*(each.aclose() for each in (*self._closable(part), *of_extensions)))
        for each in self._closable(late):
            await each.aclose()

    def _closable(self, kind: type[part[Any]]) -> list[Any]:
        """Return the parts of a kind that were made and can be closed, the last declared first; of a tuple, each."""
        made = [vars(self).get(name) for name in reversed(self.declared(kind))]
        singly = [each for some in made for each in (some if isinstance(some, tuple) else (some,))]
        return [each for each in singly if hasattr(each, "aclose")]
