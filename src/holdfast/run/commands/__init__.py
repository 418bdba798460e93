"""One file for each command. A command imports the engine when it runs, so that --help does not wait for it."""
