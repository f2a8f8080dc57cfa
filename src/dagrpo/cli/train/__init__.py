"""`dagrpo train`: one half of training steps, to locate faults.

The stage train runs whole steps.
"""
