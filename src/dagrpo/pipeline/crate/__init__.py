"""Results that leave the house: an experiment as a Workflow Run RO-Crate."""
