"""``python -m odcl``: the command, where it is not on the path."""

from odcl.cli.main import main

if __name__ == "__main__":
    main()
