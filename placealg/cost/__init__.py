"""What a program costs: memory and communication, in closed form, read off its events."""
