"""Foreign configurations become strategies: readers of what training frameworks are told, and what that leaves open.

Read first `reading.py`, what every reader answers; then `said.py`, how one asks a document for its keys and accounts
for each, and `draft.py`, what all formats share. `formats/` holds the tables: one per format, of keys with their
defaults, effects and sources.
"""
