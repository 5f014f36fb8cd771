"""The `kitchener` command line. Starts at `main`; each other module is one command, or a part that several share."""
