"""The command line: `python -m dagrpo`."""

from dagrpo.cli.application import main

if __name__ == "__main__":
    main()
