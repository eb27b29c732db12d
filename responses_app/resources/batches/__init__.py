"""Batches: many requests that are run behind all else; those of OpenAI's API and of Anthropic's.

model.py      what is kept: batches, and their lines
fields.py     what requests and answers of both APIs have
lines.py      lines of inputs, which are read, and of outputs, which are written
store.py      `Batches`: batches and their lines in the database, and claims on them
handlers.py   how an endpoint answers a line
runner.py     runs the lines of a batch, a few at a time
duty.py       what each worker does: claims batches, reads their inputs, and writes their outputs
endpoints.py  `/v1/batches` and `/v1/messages/batches`
"""
