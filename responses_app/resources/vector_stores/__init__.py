"""Vector stores: files of a project that are searched together, cut into chunks.

model.py      what is kept: stores, their files, batches of these, chunks and vectors
records.py    what the store gives and takes
fields.py     what requests and answers of the API have
settings.py   the settings
store.py      `DatabaseVectorStores`: stores and files in the database
vectors.py    which files lack vectors, and who makes them
removal.py    which rows clients see, and how the others are removed
search.py     how chunks are found by their words
nearest.py    how chunks are found by their vectors, and what of these is kept in memory
endpoints.py  `/v1/vector_stores`
"""
