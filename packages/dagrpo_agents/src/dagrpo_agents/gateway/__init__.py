"""Gateway: OpenAI's protocol in front of a session, which records every token.

Any program that accepts a base_url can make attempts. The gateway runs in the process and the event loop of the rollout, and
listens on 127.0.0.1. agents/ has the programs, session.py the tokens.
"""
