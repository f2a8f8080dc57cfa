"""`dagrpo publish`: a trained policy and its rollouts in the layout of the Hugging Face hub."""
