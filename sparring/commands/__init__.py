"""One module per family of commands. What a command needs is imported when it runs, so that --help is quick."""
