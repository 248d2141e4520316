"""What people see: tables in the terminal, one HTML file, JSON, and the explanation of every number."""
