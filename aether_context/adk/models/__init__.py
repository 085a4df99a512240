"""What models are asked besides the agent's own calls: Gemini's counts and vectors, and texts."""
