"""The organization, `/v1/organization`: what only admin keys open."""
