"""Where the heavy work on the lake's files is run."""
