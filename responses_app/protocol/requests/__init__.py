"""A request that makes a response, validated, and the response object that echoes it."""
