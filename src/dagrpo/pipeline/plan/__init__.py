"""`dagrpo plan`: memory and time of an experiment, before work starts.

Weights, optimizer, key-value cache and weight sync are arithmetic; the update is counted by running the trainer's own on tensors without
values. No weights are read. Times are recorded ones of this experiment, or else estimates. To learn how fast a CPU is,
matrix products and reads of memory are timed on it. Not part of any stage: no result depends on it.
"""
