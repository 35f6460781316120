"""Runs a command and says every ten seconds how long it has taken, so that it is seen to go on."""

import subprocess
import sys
import time

INTERVAL_S = 10.0


def main() -> int:
    began = time.monotonic()
    with subprocess.Popen(sys.argv[1:]) as process:
        while True:
            try:
                return process.wait(INTERVAL_S)
            except subprocess.TimeoutExpired:
                print(f"    {time.monotonic() - began:.0f} s so far", flush=True)
            except KeyboardInterrupt:
                process.wait()
                return 130


if __name__ == "__main__":
    sys.exit(main())
