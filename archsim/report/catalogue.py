"""Tables of the catalogue: what chips, workloads, mappers and runtimes there are, and what one of them says."""
