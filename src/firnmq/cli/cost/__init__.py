"""`firn tier cost`: the command, and the model that it evaluates."""
