"""Chat templates of models, rendered in a process of their own: they are programs, and whoever made the model wrote them.

A template runs in Jinja's sandbox, so it reaches no file and no attribute of Python's. The sandbox bounds neither time nor
memory; the process does (worker.py). Not here: which messages a template is given (rollout/chat_formats), and tokens.
"""
