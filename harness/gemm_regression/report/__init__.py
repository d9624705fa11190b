"""Results as text and pages: terminal, Markdown, HTML."""
