"""``python -m rayguard``: the same as the ``rayguard`` command (``rayguard.cli``)."""

from rayguard.cli import main

if __name__ == "__main__":
    main()
