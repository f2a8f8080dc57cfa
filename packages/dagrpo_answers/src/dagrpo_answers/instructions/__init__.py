"""Instructions that a program can verify, as IFEval has them."""
