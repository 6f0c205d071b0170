"""Read and show what ranks print and display."""
