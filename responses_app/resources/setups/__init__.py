"""Setups of the playground that a project keeps under names; the API calls them prompts.

model.py      what is kept
fields.py     what requests and answers of the API have
store.py      `Setups`: the setups in the database
endpoints.py  `/v1/playground/prompts`
"""
