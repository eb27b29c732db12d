"""Skills: folders with a file SKILL.md that a project keeps, in versions, for the containers of its requests.

A skill has versions, numbered from 1 on; none is ever changed, and no number is given twice. Each is a bundle: a zip
file. Their bytes count as those of the project's files. How requests name skills stands in `protocol.files.skills`.

model.py      what is kept: skills and versions; `kit.pieces` has the bundles
fields.py     the settings, what requests and answers of the API have, and the errors
bundles.py    bundles as clients send them → a zip file with nothing bad in it
keeping.py    how versions are shown, hidden, removed and written out
store.py      `Skills`: the skills in the database
endpoints.py  `/v1/skills`
"""
