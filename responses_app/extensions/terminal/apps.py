"""The extension `terminal`: commands for people at a terminal, who use a server of theirs or of others."""

from collections.abc import Iterable

from responses_app.kit.extension import Command, Extension


class Terminal(Extension):
    """`chat`, `replay`, `bench` and `configure`, which need neither Django nor a database."""

    name = "responses_app.extensions.terminal"
    about = "respsite chat, replay, bench and configure"

    @classmethod
    def commands(cls) -> Iterable[Command]:
        """Return the commands."""
        from responses_app.extensions.terminal.commands import COMMANDS

        return COMMANDS
