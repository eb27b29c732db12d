"""Files that clients upload, whole or in parts, and that batches write.

One that comes in parts counts as a file of its project from the moment it is created, with the size that it says. Parts
are kept as they come, and are the content of the file in the order that completes the upload: nothing is copied.

    create {bytes, filename, …} → parts, each a form, in any order and beside each other → complete {part_ids} → a file

model.py      what is kept: files, uploads and their parts; `kit.pieces` has the contents
fields.py     the settings, what requests and answers of the API have, and the errors
keeping.py    how much a project keeps; how files and parts are removed and written out
store.py      `Files` and `Uploads`: both in the database
endpoints.py  `/v1/files` and `/v1/uploads`
"""
