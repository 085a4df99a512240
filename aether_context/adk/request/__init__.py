"""ADK's request: read as values, completed with what could enter it, and written back."""
