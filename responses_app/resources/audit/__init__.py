"""The audit trail: who did what, in a chain that shows whether it is whole.

model.py      what is kept
fields.py     actions, actors and entries; and what answers of the API and exports have
chain.py      entries are added to the chain, verified and exported
store.py      the trail, as requests and pages add to it and read it
endpoints.py  `/v1/organization/audit_logs`
"""
