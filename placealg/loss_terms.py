"""The loss by the names that strategies give it: the terms that routers may have beside tokens, and means of what."""

BALANCE, BOUND = "balance", "z"

TERMS = (BALANCE, BOUND)
"""The balance of the experts' loads, and the bound of the router's logits."""

PER = ("token", "sequence", "document")
"""What the loss is a mean over: tokens, or the means of each sequence or of each document."""
