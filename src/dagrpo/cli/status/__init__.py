"""`dagrpo status`: the state of this folder's experiments.

Taken from the records of their runs alone.
"""
