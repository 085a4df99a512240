"""Requests to models besides the agent's own calls: Gemini's counts and vectors, and texts."""
