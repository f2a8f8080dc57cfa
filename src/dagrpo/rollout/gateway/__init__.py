"""OpenAI's protocol in front of a session: any program that takes a base_url can make attempts, and every token is recorded.

It runs in the process and the event loop that roll out, and listens on 127.0.0.1. Not here: which program asks (agents/),
and what its tokens are (session.py).
"""
