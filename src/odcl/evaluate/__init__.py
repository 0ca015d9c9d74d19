"""How good models are: scores on held-out rows, errors where the truth is known."""
