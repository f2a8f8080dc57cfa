"""`dagrpo plan`: the memory and the time of an experiment, before work starts.

Memory is estimated by formulas, from the parameters and the shapes of the models: no weights are read. Times are those that the
experiment has taken here before, or else estimates by formulas. To learn how fast a CPU is, matrix products and reads of memory are
timed on it; nothing else is run. Not part of any stage: no result depends on it.
"""
