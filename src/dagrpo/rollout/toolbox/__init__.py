"""What calls tools, and what several of them are made of. Not here: the tools themselves (rollout/tools/)."""
