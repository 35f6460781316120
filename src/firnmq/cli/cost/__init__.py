"""`firn tier cost`: the command, which evaluates the model of `firnmq.tiering.cost`."""
