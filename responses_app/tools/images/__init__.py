"""Images that are made and edited at a service of the operator's."""
