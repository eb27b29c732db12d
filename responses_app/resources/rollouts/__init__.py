"""Roll-outs: what a model read and sampled for an agent, as tokens. `protocol/rollouts/` records it and makes the tree.

model.py      what is kept: roll-outs, and their generations
fields.py     what is known of a roll-out, and how clients see it
rows.py       both as rows
keeping.py    `GenerationKeeper`: puts what responses add into the database
removal.py    how they are removed, in steps
store.py      `RolloutStore`: roll-outs in the database
"""
