"""Conversations: items of a project that responses read and append to.

model.py      what is kept
fields.py     what requests and answers of the API have, and what runs read and append
appending.py  how items come into a conversation
store.py      `DatabaseConversationStore`: conversations in the database
endpoints.py  `/v1/conversations`
"""
