"""What a machine is: chips and their parts, links, memory, power, price, and the constants of their kernels."""
