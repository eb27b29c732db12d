"""The pages of roll-outs: one as a tree with its tokens, two side by side, a group as a table, a list."""
