"""What users feel: the steady answer of a closed loop."""
