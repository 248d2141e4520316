"""What it costs: energy, capital, rent, dollars per million tokens."""
