"""GRPO: from prompts to a better policy. The parts (advantages, losses) do not know the loop."""
