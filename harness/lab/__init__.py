"""Experiments about the suite: its detection power, the claims of course notes, and the generated pages."""
