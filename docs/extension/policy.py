"""The site without a script or a style inside of its pages, as the server's Content-Security-Policy wants them."""

import hashlib
import re
from pathlib import Path

_INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)
_HIDDEN, _FAINT = ' style="display: none;"', ' style="opacity: 50%"'  # what the theme's icons have


def outsource(site: Path) -> None:
    """Put scripts and styles of all pages into files. Raises `ValueError` for an attribute `style` it does not know."""
    for page in sorted(site.rglob("*.html")):
        up = "../" * len(page.relative_to(site).parent.parts)
        text = _INLINE.sub(lambda found: _file(site, up, found), page.read_text())  # noqa: B023 - called at once
        text = text.replace(_HIDDEN, " hidden").replace(_FAINT, ' opacity="0.5"')
        if found := re.search(r"<[^>]* style=\"[^>]*>", text):
            raise ValueError(f"{page.name} has a style of its own: {found[0][:200]}")
        page.write_text(text)


def _file(site: Path, up: str, found: re.Match[str]) -> str:
    kind, content = found.groups()
    name = f"_static/{hashlib.sha256(content.encode()).hexdigest()[:16]}.{'js' if kind == 'script' else 'css'}"
    (site / name).write_text(content)
    return f'<script src="{up}{name}"></script>' if kind == "script" else f'<link rel="stylesheet" href="{up}{name}">'
