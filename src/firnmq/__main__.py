"""`python -m firnmq` is `firn`; also the script `firn-python`, which the launcher `firn` starts."""

from __future__ import annotations

import sys

from firnmq.interrupts import end_on_interrupt


def run() -> None:
    end_on_interrupt()  # Before the imports, which take a tenth of a second.
    from firnmq.cli import main

    sys.argv[0] = sys.argv[0].removesuffix("-python")
    main()


if __name__ == "__main__":
    run()
