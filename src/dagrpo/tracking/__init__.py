"""What is recorded about executions of stages: runs in MLflow, lineage by content. Cannot change an output."""
