"""What training brings: endpoints of roll-outs, of their exports, and of engines whose weights change; a command."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from responses_app.kit.extension import Command, Extension

if TYPE_CHECKING:
    from responses_app.web.endpoint import Endpoint


class Training(Extension):
    """What trainers ask for; the kernel records what is sampled of a roll-out."""

    name = "responses_app.extensions.training"
    about = "roll-outs, their exports, and weights of engines"

    @classmethod
    def commands(cls) -> Iterable[Command]:
        """Return `respsite rollouts`."""
        from responses_app.extensions.training.commands import COMMANDS

        return COMMANDS

    def endpoints(self) -> Sequence["Endpoint"]:
        """Return the three resources."""
        from responses_app.extensions.training import engine, rollouts

        return (*engine.ENDPOINTS, *rollouts.ENDPOINTS)
