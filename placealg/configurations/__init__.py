"""The best correct configuration of a model on devices: a space as data, every layout evaluated, the winner proved."""
