"""What a reader works with: calls on warm ranks, %ranks, cells and the shell that runs them."""
