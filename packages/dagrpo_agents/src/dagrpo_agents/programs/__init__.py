"""External programs that make attempts: start, watch, end, input and report.

gateway/ connects them to the policy; agents/ has the programs.
"""
