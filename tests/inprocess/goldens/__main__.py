"""`python -m tests.inprocess.goldens --write` writes the goldens anew; `git diff` then shows what is seen otherwise."""

import sys

from tests.inprocess.goldens.making import FILES, make

if sys.argv[1:] != ["--write"]:
    sys.exit(__doc__)
for old in FILES.glob("*"):
    old.unlink()
make(FILES)
