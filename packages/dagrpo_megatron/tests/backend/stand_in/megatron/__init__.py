"""Stand-in for Megatron-LM in tests: its command line, interfaces and files, no training. Each update adds a number to every weight."""
