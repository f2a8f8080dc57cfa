"""Parts of chat formats: a model's own template, or a family's renderer.

Neither tokenizes the policy's tokens again. chat/renderers/ lists the formats; chat/tool_calls/ has the syntax of calls.
"""
