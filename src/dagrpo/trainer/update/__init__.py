"""Policy update of a step: advantages, objective, gradients."""
