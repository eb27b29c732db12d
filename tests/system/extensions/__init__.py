"""Extensions: another's package that brings one, and the server without any."""
