"""What is kept of responses and conversations, as JSON Lines: out of one database, into another.

    {"kind": "header", "format": "respsite", "version": 1, …}
    {"kind": "part", "id": …, "part": {…}}              a part of a chain whose response is gone
    {"kind": "response", "id": …, "response": {…}, "part": {…}, "sampled": […], "log": […], "name": {…}, "choice": {…}}
    {"kind": "picture", "id": …, "picture": {…}, "owners": […]}     that those responses and parts show
    {"kind": "conversation", "id": …, "conversation": {…}}
    {"kind": "items", "id": …, "items": […]}            of the conversation before them, up to 100 a line
    {"kind": "end"}

Rows are as their tables have them; bytes are base64, times ISO 8601. Responses come in the order of their ids, which is
that of time, so a chain's beginning comes before what continues it.
"""

FORMAT, VERSION = "respsite", 1
AT_ONCE = 100  # rows that are read or written together
BYTES_AT_ONCE = 16 * 1024 * 1024  # of what they hold
