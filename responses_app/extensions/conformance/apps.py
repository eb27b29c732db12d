"""The extension `conformance`: a command that tests whether a server answers as OpenAI's and Anthropic's APIs do."""

from collections.abc import Iterable

from responses_app.kit.extension import Command, Extension


class Conformance(Extension):
    """`respsite conformance`, for any server: it needs neither Django nor a database."""

    name = "responses_app.extensions.conformance"
    about = "respsite conformance"

    @classmethod
    def commands(cls) -> Iterable[Command]:
        """Return the command."""
        from responses_app.extensions.conformance.commands import COMMANDS

        return COMMANDS
