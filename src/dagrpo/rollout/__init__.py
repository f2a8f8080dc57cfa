"""From a problem to a graded trajectory: prompts, the agent loop, the SGLang engine, and the table of what came out."""
