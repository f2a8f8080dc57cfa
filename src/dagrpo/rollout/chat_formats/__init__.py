"""What chat formats are made of: a model's own template or a family's renderer, and no token of the policy made twice.

Not here: which there are (rollout/chat/), and how calls are written (rollout/calls/).
"""
