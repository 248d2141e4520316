"""What is computed: models, precision, steps, operators and lowering."""
