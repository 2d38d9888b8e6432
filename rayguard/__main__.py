"""``python -m rayguard``: the same as the ``rayguard`` command (``rayguard.cli.app``)."""

from rayguard.cli.app import main

if __name__ == "__main__":
    main()
