"""Schema of params.yaml, composed of the sections of all packages.

So a stage depends on its own sections alone.
"""
