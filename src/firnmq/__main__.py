"""`python -m firnmq` is `firn`."""

from firnmq.cli import main

if __name__ == "__main__":
    main()
