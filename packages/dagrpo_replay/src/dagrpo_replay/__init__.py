"""`dagrpo replay`: recompute steps of a run and compare digests.

Steps are computed from the rollouts and digests that the run has recorded.
"""
