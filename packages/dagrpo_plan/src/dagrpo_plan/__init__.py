"""`dagrpo plan`: memory and time of an experiment, before work starts.

Memory is arithmetic on the shapes of models and batches; no weights are read. Times are recorded ones of this experiment, or else
estimates. To learn how fast a CPU is, matrix products and reads of memory are timed on it. Not part of any stage: no result depends on it.
"""
