"""Parts of chat formats: a model's own template, or a family's renderer.

Neither tokenizes the policy's tokens again. rollout/chat/ lists the formats; rollout/calls/ has the syntax of calls.
"""
