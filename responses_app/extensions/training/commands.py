"""`respsite rollouts`, with its arguments."""

import json
from argparse import ArgumentParser, ArgumentTypeError

from responses_app.command_line.endpoint import add_endpoint, whole_number
from responses_app.kit.extension import Command
from responses_app.management.flags import suggest

ROLLOUT_FORMATS = ("tree", "nemo-gym", "trl", "harbor", "verifiers", "tinker")  # of `rollouts export`


def _arguments(parser: ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title="actions", required=True)

    def action(name: str, about: str, function: str = "run", argument: str = "id") -> ArgumentParser:
        """Add an action; `function` runs it, `argument` is its first one, "" for none."""
        added: ArgumentParser = actions.add_parser(name, help=about, description=about, allow_abbrev=False)
        added.set_defaults(runs=f"responses_app.extensions.training.program:{function}")
        suggest(added)
        if argument:
            what = "file to write; - is standard output" if argument == "file" else "the roll-out's id"
            added.add_argument(argument, metavar=argument.upper(), help=what)
        add_endpoint(added)
        return added

    listed = action("list", "Print the roll-outs of a server, the newest first, each as a line of JSON.", argument="")
    listed.add_argument("--group", metavar="NAME", help="only roll-outs of this group")
    listed.add_argument(
        "--limit", type=whole_number, default=100, metavar="N", help="at most so many (default: %(default)s)"
    )
    shown = action("show", "Print a roll-out as JSON.")
    shown.add_argument("--tree", action="store_true", help="with the tree of its tokens")
    rewarded = action("reward", "Add a reward to a roll-out.")
    rewarded.add_argument("reward", metavar="REWARD", type=_reward, help="a number, or a JSON object of named numbers")
    rewarded.add_argument("--turn", metavar="ID", help="reward this response of it (default: the whole roll-out)")
    action("end", "End a roll-out: it takes no more requests.")
    action("delete", "Delete a roll-out, with all its tokens.")
    about = "Write the roll-outs of a server to FILE, the oldest first, in the format of a trainer."
    export = action("export", about, "run_export", "file")
    export.add_argument("--format", choices=ROLLOUT_FORMATS, default="tree", help="default: %(default)s")
    about = "JSON Lines or Parquet (default: %(default)s)"
    export.add_argument("--file-type", choices=("jsonl", "parquet"), default="jsonl", help=about)
    export.add_argument("--resume", action="store_true", help="continue an interrupted export of JSON Lines")
    export.add_argument("--after", metavar="ID", help="begin after this roll-out")
    export.add_argument("--group", metavar="NAME", help="only roll-outs of this group")
    export.add_argument("--status", choices=("open", "ended"), help="only roll-outs that are open, or that have ended")
    export.add_argument("--weights", metavar="VERSION", help="only roll-outs with a token sampled by these weights")
    export.add_argument("--min-reward", type=float, metavar="N", help="only roll-outs with this reward or more")
    export.add_argument("--max-reward", type=float, metavar="N", help="only roll-outs with this reward or less")
    export.add_argument(
        "--created-after", type=int, metavar="TIME", help="only those created at this Unix time or later"
    )
    export.add_argument("--created-before", type=int, metavar="TIME", help="only those created before this Unix time")


def _reward(text: str) -> float | dict[str, float]:
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    # What numbers a reward may have, the server says.
    if isinstance(given, bool) or not isinstance(given, (int, float, dict)):
        raise ArgumentTypeError("a number, or a JSON object of named numbers")
    return given


COMMANDS = (Command("rollouts", "List, show, reward, end, delete and export the roll-outs of a server.", _arguments),)
