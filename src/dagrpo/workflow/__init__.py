"""What the Snakefile and dvc.yaml share, and what keeps them agreed."""
