"""Lead from the plan of a launch to ranks that answer, and to their end."""
