"""How long it takes: the cost of a kernel per kind of machine, lanes, schedule and stalls."""
