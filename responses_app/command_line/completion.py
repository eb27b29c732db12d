"""`respsite completion bash|zsh`: what a shell needs to complete the commands and their flags."""

import sys
from argparse import Namespace

import shtab

from responses_app.command_line.parser import build_parser


def run(options: Namespace) -> int:
    """Write the script to standard output."""
    sys.stdout.write(shtab.complete(build_parser(), shell=options.shell))
    sys.stdout.write("\n")
    return 0
