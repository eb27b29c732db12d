"""Many roll-outs at once: simulated harnesses, simulated engines that write down what they were asked and gave, and a
comparison of every token.
"""
