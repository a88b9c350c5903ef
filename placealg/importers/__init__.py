"""Foreign configurations become strategies: readers of what training frameworks are told, and what that leaves open."""
