"""Tunes policies on recorded sessions: simulates what other settings would have sent, cost and kept."""
