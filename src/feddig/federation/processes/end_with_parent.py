"""Start a program that ends when its parent process ends, also when the parent is killed.

    python end_with_parent.py PARENT PROGRAM [ARGUMENTS]

It is run by its path, not as a module, because it imports nothing that takes time and then becomes the program. On
systems other than Linux the program is only started; what a crash leaves there is ended by hand.
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
        if os.getppid() != parent:  # it ended before the kernel was asked
            sys.exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
