"""The listings of the course notes, typed anew from what they compute, and what the check says of each."""
