"""The audit trail in Django's database: `trail` is what callers use to add to it, `verifying` reads it."""
