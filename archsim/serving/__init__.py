"""What users feel: the steady answer of a closed loop, and requests played one by one."""
