"""The closed schema of params.yaml: one small module per section, so that a stage depends on its own sections alone."""
