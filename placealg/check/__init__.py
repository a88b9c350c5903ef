"""The verdict a user sees: prove, replay every refutation, look for a repair."""
