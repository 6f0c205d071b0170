"""Behind launch: how ranks are planned, started, talked to and ended. Imported by every rank, so it imports nothing."""
