"""Start a program that ends when whoever started it ends, however that happens.

    python end_with_parent.py PARENT PROGRAM [ARGUMENTS]

Run by its path, not as a module: it becomes the program at once and imports nothing that takes time. On systems
other than Linux the program simply starts; what a crash leaves there is ended by hand.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask the kernel for a signal at the parent's death, then become the program."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before it could be asked about
            sys.exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
