"""Texts made to be slow to read: what a tokeniser, a regular expression or a parser may take badly.

Names of texts, and `hostile_text(name, size)`, which makes one of about `size` bytes of UTF-8.
"""

RUNS = {
    "dashes": "-",
    "equals": "=",
    "letters": "x",
    "capitals": "A",
    "spaces": " ",
    "tabs": "\t",
    "lines": "\n",
    "carriage-returns": "\r",
    "no-break-spaces": "\u00a0",
    "wide-spaces": "\u3000",
    "digits": "1",
    "apostrophes": "'",
    "quotes": '"',
    "opening-quotes": "“",
    "backslashes": "\\",
    "slashes": "/",
    "braces": "{",
    "zeros": "\0",
    "han": "中",
    "hangul": "가",
    "arabic": "ا",
    "thai": "ก",
    "kana": "あ",
    "modifiers": "ʰ",
    "marks": "\u0301",
    "emoji": "😀",
    "base64": "QUJD1RA",
}
MIXTURES = {
    "capital-small": "aA",
    "small-capital-mark": "aA\u0301",
    "contractions": "a's",
    "space-line": " \n",
    "lines-spaces": "\n \r\n\t",
    "space-letter": " a",
    "dash-slash": "-/",
    "punctuation-lines": "!\n",
    "combining": "e\u0301",
    "stacked-marks": "o\u0301\u0302\u0303\u0304\u0305",
    "families": "👨‍👩‍👧‍👦",
    "flags": "🇩🇪",
    "han-words": "汉字",
    "han-capital": "中A",
    "special-tokens": "<|start|>assistant<|message|>",
    "special-halves": "<|end|",
    "json": '{"a":[1,"b"],',
    "open-arrays": "[[",
    "quoted": '"a“',
    "function-names": "call lookup ",
    "comments": "// a: {\n",
    "types": "\ntype f = (_: {",
    "numbers": "1.5-",
    "named": "in A of B for ",
    "words": "The quick brown fox. ",
    "prose": "视野无限广，窗外有蓝天。",
    "right-to-left": "\u202eabc\u202c",
    "bell": "\x07\x1b[31m",
    "hex": "0x1F ",
    "urls": "https://example.org/a?b=c&d=e#f ",
}
BLOCKS = {**RUNS, **MIXTURES}
_ENDS = {"": ("", ""), "-in-words": ("see ", " end"), "-then-line": ("", "\n"), "-after-repeat": ("repeat: ", "x")}
TEXTS = tuple(f"{name}{end}" for end in _ENDS for name in BLOCKS)


def hostile_text(name: str, size: int) -> str:
    end = next(end for end in sorted(_ENDS, key=len, reverse=True) if name.endswith(end))
    block = BLOCKS[name.removesuffix(end)]
    before, after = _ENDS[end]
    return f"{before}{block * (size // len(block.encode()))}{after}"
