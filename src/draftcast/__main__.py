"""``python -m draftcast``: the same as the ``draftcast`` command."""

from draftcast.scenarios.cli.main import main

if __name__ == "__main__":
    main()
