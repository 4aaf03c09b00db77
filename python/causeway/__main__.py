"""``python -m causeway``: the causeway command."""

import signal
import sys

from causeway import _native


def main() -> int:
    """Runs the command with this process's arguments and returns its exit status."""
    # Python only takes note of Ctrl-C, and the command would run on.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _native.main(["causeway", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
