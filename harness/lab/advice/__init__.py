"""The course notes' recommendations, and how far they are behind the best."""
