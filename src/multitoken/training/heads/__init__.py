"""Training of heads and of the predictors of their span."""
