"""What is judged, by which rules, and what it came to: codes and figures, no words for people. Pure."""
