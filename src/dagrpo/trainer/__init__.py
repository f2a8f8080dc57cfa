"""GRPO training and SFT: loop, policy, update and resumable state.

The maths is in algorithms/.
"""
