"""What the notebook and a rank send each other, and how."""
