"""What ranks print and display: read it, show it."""
