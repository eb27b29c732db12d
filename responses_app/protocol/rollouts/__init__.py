"""Roll-outs: what models read and sampled, token by token, as training needs it."""
