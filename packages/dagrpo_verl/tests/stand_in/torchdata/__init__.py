"""Stand-in for torchdata, which verl draws prompts with."""
