"""Where and how it runs: systems, runtimes, splits, placement, memory, and the mappers that propose."""
