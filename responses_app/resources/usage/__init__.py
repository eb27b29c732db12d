"""Usage: which tokens were used, when and by whom; and what they have cost.

model.py      what is kept: usage of requests, and later sums
fields.py     what is counted, what is asked of it, and what answers of the API have
keeping.py    rows, as the transaction that ends a response writes them, too
store.py      the store in the database
queries.py    questions of requests, and a page of what was found
endpoints.py  `/v1/organization/usage/…` and `/v1/organization/costs`
"""
