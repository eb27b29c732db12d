"""Projects and their keys, and admin keys, which manage them: the organization, as OpenAI calls it.

model.py      what is kept
fields.py     what requests and answers of the API have
store.py      `Projects`: those who manage them read and change them here
callers.py    keys and users as those who ask, for the door; and what commands and the admin do with keys
endpoints.py  `/v1/organization/projects` and `/v1/organization/admin_api_keys`
"""
