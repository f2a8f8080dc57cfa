"""Checks params.yaml, with the code of this folder."""

from pathlib import Path

from own_code import use_code_of

if __name__ == "__main__":
    use_code_of(Path(__file__).resolve().parents[2])
    from dagrpo.pipeline.dvc.check import main

    main()
