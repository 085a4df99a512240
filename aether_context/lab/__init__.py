"""What people use on recordings: reading, command line, exam, tuning, viewer, demo and preview.

Nothing that a call runs, and nothing of the store, imports it.
"""
