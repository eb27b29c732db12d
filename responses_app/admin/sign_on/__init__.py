"""Single sign-on by OpenID Connect, as Django sees it. Nothing of it is imported where OIDC_ISSUER is unset."""
