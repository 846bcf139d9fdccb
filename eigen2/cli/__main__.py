"""Run the command line: `python -m eigen2.cli`."""

from eigen2.cli.main import main

if __name__ == "__main__":
    main()
