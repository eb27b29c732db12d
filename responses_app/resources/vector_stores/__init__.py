"""Vector stores: files of a project that are searched together, cut into chunks.

model.py      what is kept: stores, their files, batches of these, chunks and vectors
fields.py     what requests and answers of the API have, and what is searched
settings.py   the settings
store.py      `VectorStores`: stores and files in the database
work.py       files that are to be read or embedded, and which worker does it
search.py     how chunks are found, by words
nearest.py    how chunks are found by vectors
removal.py    how what is deleted or has expired is removed
tool.py       the tool `file_search`, which searches them and has files read; `tools/meaning.py` has them embedded
endpoints.py  `/v1/vector_stores`
"""
