"""Webhooks: a project's endpoints are told of its background responses, batches and vector stores.

model.py      what is kept: endpoints, events in the outbox, deliveries
messages.py   which events there are, what a message says, and how it is signed
fields.py     what requests and answers of the API have
settings.py   the settings
store.py      `Webhooks`: endpoints and deliveries in the database
outbox.py     events go in with the transaction of what they tell, and come out as deliveries
sender.py     sends a message to a receiver
duty.py       what each worker does: makes deliveries, and sends what is due
endpoints.py  `/v1/webhook_endpoints`
"""
