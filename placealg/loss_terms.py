"""The terms of the loss that routers may have beside that of the tokens, by the names that strategies give them."""

BALANCE, BOUND = "balance", "z"

TERMS = (BALANCE, BOUND)
"""The balance of the experts' loads, and the bound of the router's logits."""
