"""Subjects of commits: short, in the imperative. git's hook runs `python -m tests.project.subjects FILE`."""

import re
import sys
from pathlib import Path

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


if __name__ == "__main__":
    subject = Path(sys.argv[1]).read_text().split("\n", 1)[0]
    found = None if re.match(r"(fixup|squash|amend)! |Merge |Revert ", subject) else problem(subject)
    sys.exit(f"The subject of this commit: {found}." if found else 0)
