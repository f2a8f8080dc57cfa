"""What one machine with one GPU can show: the tests that need it, a trainer's speed and memory, and a whole experiment.

`make gpu-check` runs `python -m benchmarks.gpu`: see __main__.py.
"""
