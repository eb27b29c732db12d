"""What checks are made of: how a server is asked, what answers are made of, where the rules are."""
