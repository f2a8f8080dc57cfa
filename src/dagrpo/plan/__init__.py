"""`dagrpo plan`: the memory and the time of an experiment, before work starts.

Weights, optimizer, key-value cache and weight sync are arithmetic; the update is counted by running the trainer's own on tensors without
values. No weights are read. Times are those that the experiment has taken here before, or else estimates. To learn how fast a CPU is,
matrix products and reads of memory are timed on it. Not part of any stage: no result depends on it.
"""
