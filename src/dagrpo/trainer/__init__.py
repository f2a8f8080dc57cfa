"""GRPO, and the supervised stage before it: the loop, the policy, its update, resumable state. The maths is in algorithms/."""
