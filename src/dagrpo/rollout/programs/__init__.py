"""Other people's programs: how one is started, watched and ended, what it is told of a problem, and what it may report.

Not here: how it talks to the policy (gateway/), and which programs there are (agents/).
"""
