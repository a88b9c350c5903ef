"""Text for people: placements, programs, formulas and verdicts as aligned lines."""
