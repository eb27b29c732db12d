"""Shows figures of matplotlib, which imports this by the name in MPLBACKEND: it draws them with its own Agg."""

from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from respsite_kernel.display import DISPLAY

FigureCanvas = FigureCanvasAgg


def show(*_: Any, **__: Any) -> None:
    """Show all open figures, and close them: `plt.show()`."""
    DISPLAY.show_figures()
