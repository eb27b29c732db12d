"""Many roll-outs at once: simulated harnesses, simulated engines that write down what they were asked and gave, and a
comparison of every token. `python -m bench.training` is the whole run; `training` is a row of the bench with fewer.
"""
