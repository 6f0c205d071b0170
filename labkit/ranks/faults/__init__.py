"""Say what went wrong and where: errors, stacks, and what ranks that stand still wait for."""
