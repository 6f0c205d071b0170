"""What imports nothing of labkit: argument checks, files, the machine, rendezvous, the hub, number formats."""
