"""Let a reader work with ranks: calls on warm ranks, %ranks, cells and the shell they run in."""
