"""Budgets per task profile out of recorded sessions: what another policy would have sent, cost and kept."""
