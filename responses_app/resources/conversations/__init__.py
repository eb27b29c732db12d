"""Conversations: items of a project that responses read and append to.

model.py      what is kept
fields.py     what requests and answers of the API have, and what a response appends
appending.py  how items come into a conversation, also in the transaction that ends a response
store.py      `Conversations`: conversations in the database
endpoints.py  `/v1/conversations`
"""
