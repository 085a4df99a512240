"""Tool results on their way out of a prompt, and back into it."""
