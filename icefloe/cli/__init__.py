"""The command line: `icefloe sql`, `tables`, `show`, `history`, `files`, `demo` and maintenance."""
