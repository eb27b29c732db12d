"""The playground: a page that people try models with, the chats that it lists, and setups that a project has named.

`page` renders the page, whose scripts are in `static/playground/`. `endpoints` has `/v1/playground`: `chats` says whose
a chat is, `chat_store` finds chats among stored responses, `setups` keeps setups under names.
"""
