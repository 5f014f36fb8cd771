"""Pure policy for work orders: the plan of a turn, the quality gate and token budgets."""
