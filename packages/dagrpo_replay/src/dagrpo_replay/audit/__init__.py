"""`dagrpo audit`: an experiment derived again, from raw rows to scores.

What a run wrote is compared with what follows from data, seeds and weights; that two of its records agree counts for nothing.
"""
