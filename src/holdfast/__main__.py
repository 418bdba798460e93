"""``python -m holdfast`` is the command line."""

from holdfast.run.cli import main

if __name__ == "__main__":
    main()
