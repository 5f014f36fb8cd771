"""`python -m kitchener` is the `kitchener` command."""

from kitchener.cli.main import main

if __name__ == "__main__":
    main()
