"""Single sign-on by OpenID Connect: what the provider says, and whether it is true. Knows neither Django nor users."""
