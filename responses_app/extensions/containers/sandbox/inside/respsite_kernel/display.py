"""What a cell shows: text goes to its output, pictures to the host.

Figures of matplotlib are shown when the code says so (`plt.show()`), and at the end of the cell. Matplotlib draws for
no screen: the environment (MPLBACKEND) names `figures` as what it shows figures with.
"""

import io
import sys
from typing import Any

MAX_IMAGES = 16  # images of one cell; the host bounds them as well
MAX_IMAGE_BYTES = 16 * 1024 * 1024  # of all images of one cell
# Methods by which libraries show an object as a picture.
_KINDS = (("image/png", "_repr_png_"), ("image/jpeg", "_repr_jpeg_"))


class Display:
    """`display(value, …)` of the cells."""

    def __init__(self) -> None:
        self._images: list[tuple[str, bytes]] = []

    def __call__(self, *values: Any) -> None:
        for value in values:
            if not self._draw(value):
                sys.stdout.write(f"{value!r}\n")

    def take(self) -> list[tuple[str, bytes]]:
        """Return the images since the last time."""
        images, self._images = self._images, []
        return images

    def show_figures(self) -> None:
        """Take all open figures and close them, as a notebook does behind a cell."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is None or not hasattr(pyplot, "get_fignums"):
            return
        for number in pyplot.get_fignums():
            self._draw(pyplot.figure(number))

    def _draw(self, value: Any) -> bool:
        """Whether a value has a picture, which is kept."""
        figure = sys.modules.get("matplotlib.figure")
        if figure is not None and isinstance(value, figure.Figure):
            # A figure is drawn at once: the code may change it later.
            self._add("image/png", _drawn(value))
            return True
        for kind, name in _KINDS:
            # A class has the method, and no picture.
            draw = None if isinstance(value, type) else getattr(value, name, None)
            content = draw() if callable(draw) else None
            if isinstance(content, bytes):
                self._add(kind, content)
                return True
        return False

    def _add(self, kind: str, content: bytes) -> None:
        # The bound is of all images of the cell, so the others count, too.
        size = sum(len(each) for _, each in self._images) + len(content)
        if len(self._images) == MAX_IMAGES or size > MAX_IMAGE_BYTES:
            sys.stdout.write("[an image was left out: there are too many, or they are too large]\n")
            return
        self._images.append((kind, content))


def _drawn(figure: Any) -> bytes:
    """Return a figure as PNG, and close it: it is not to be shown at the end of the cell again."""
    drawn = io.BytesIO()
    try:
        figure.savefig(drawn, format="png", bbox_inches="tight")
    finally:
        if pyplot := sys.modules.get("matplotlib.pyplot"):
            pyplot.close(figure)
    return drawn.getvalue()


DISPLAY = Display()  # of the one kernel of a process
