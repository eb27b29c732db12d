"""The API: one table of endpoints, from which URLs, scopes, limits of bodies and the OpenAPI document are computed."""
