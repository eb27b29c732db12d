"""Training: the API of roll-outs, their exports in the formats of trainers, and what trainers do to engines."""
