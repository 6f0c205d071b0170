"""What a course needs around the lab: the student edition, and a doctor for the machine."""
