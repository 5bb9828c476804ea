"""`python -m drainmw` is the `drainmw` command."""

from drainmw.cli import main

if __name__ == "__main__":
    main()
