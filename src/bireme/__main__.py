"""`python -m bireme` is the same as `bireme`."""

from bireme.cli.main import main

if __name__ == "__main__":
    main()
