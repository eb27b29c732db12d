"""The OpenAPI 3.1 document of the API: made of the URL table, of the protocol's types, and of what stands here."""
