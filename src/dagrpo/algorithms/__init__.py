"""The mathematics of policy optimisation: advantages, losses, divergences, aggregation. Nothing here knows the trainer."""
