"""Policy optimisation: advantages, losses, divergences, aggregation; independent of the trainer."""
