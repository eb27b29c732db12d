"""Regular expressions with long literal texts: the library that matches builds a table of such a text, which nothing
can stop, and which takes 50 s for 4,000 equal characters.
"""

import time

import pytest
import regex

from engine.contents.regexes import check_regex
from engine.errors import GrammarRefused

SLOW = {
    "one character": "a" * 4000,
    "braces": "{" * 4000,
    "escaped": r"\x00" * 2000,
    "in any case": "[aA]" * 2000,
    "classes": "[a]" * 2000,
    "groups": "(?:a|a)" * 1000,
    "once": "a{1}" * 1500,
    "two characters": "ab" * 2000,
    "a common beginning": "a" * 200 + "(?:" + "a" * 200 + "(?:" + "a" * 200 + "b|" + "a" * 200 + "c)|c)",
    "before a choice": "x" + "a" * 4000 + "(?:bb|cc)",
    "behind another": "b*" + "a" * 4000,
}
QUICK = {
    "repeated": "a{4000}",
    "a long text": " ".join(str(number) for number in range(1000)),
    "options": "|".join(f"choice {number}" for number in range(700)),
    "a line": "-" * 200,
    "digits": "[0-9]" * 1000,
}


@pytest.mark.parametrize("name", SLOW)
def test_a_text_that_repeats_itself_is_refused(name: str) -> None:
    with pytest.raises(GrammarRefused, match=r"again and again"):
        check_regex(SLOW[name])


@pytest.mark.parametrize("name", QUICK)
def test_what_is_accepted_is_matched_soon(name: str) -> None:
    check_regex(QUICK[name])
    began = time.process_time()
    regex.compile(QUICK[name]).fullmatch(QUICK[name][:4000])
    assert time.process_time() - began < 2
