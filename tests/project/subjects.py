"""Subjects of commits: short, in the imperative. git's hook runs `python -m tests.project.subjects FILE`."""

import re
import subprocess
import sys
from pathlib import Path

from tests.kit.server import ROOT

MOST = 72
# Verbs that only look like another form.
VERBS = set("bring ring string spring embed exceed feed need proceed seed shed speed succeed focus".split())
NO_VERBS = set("a all an another any each every it more new no one only some that the there these this what".split())


def problem(subject: str) -> str | None:
    """Return what is wrong with a subject, as far as its form tells."""
    word = subject.split(" ")[0]
    if len(subject) > MOST:
        return f"it has {len(subject)} characters, and {MOST} are allowed"
    if not re.fullmatch(r"[A-Z][a-z-]+", word) or word.lower() in NO_VERBS:
        return "it does not begin with a verb in the imperative"
    if word.lower() not in VERBS and re.search(r"(ed|ing|[^s]s)$", word):
        return f"{word} is no imperative"
    return "it ends with a full stop" if subject.endswith(".") else None


def commits(since: str) -> list[tuple[str, str]] | None:
    """Return hash and subject of each commit behind one of them; None where that is not in the history here."""
    command = ["git", "log", "--no-merges", "--format=%h %s", f"{since}..HEAD"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:  # there is no git
        return None
    lines = [line.partition(" ") for line in done.stdout.splitlines()]
    return [(name, subject) for name, _, subject in lines] if done.returncode == 0 else None


if __name__ == "__main__":
    subject = Path(sys.argv[1]).read_text().split("\n", 1)[0]
    found = None if re.match(r"(fixup|squash|amend)! |Merge |Revert ", subject) else problem(subject)
    sys.exit(f"The subject of this commit: {found}." if found else 0)
