"""Which is best: scenarios, evaluation of proposed plans, the choice among them, and results."""
