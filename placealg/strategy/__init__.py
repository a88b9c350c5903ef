"""Strategies as data: placements, composition, the catalogue, and their text."""
