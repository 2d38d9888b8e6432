"""The command line: ``rayguard`` and its commands."""


def main() -> None:
    """Run the command line; what it needs is loaded here."""
    from rayguard.cli.app import main as run  # noqa: PLC0415 - importing a part of the package loads no other

    run()
