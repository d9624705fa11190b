"""Text to instructions: the reader of PTX, declarations, and where an instruction is in the sources."""
