"""An experiment as a Workflow Run RO-Crate."""
