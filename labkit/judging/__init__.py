"""How answers are judged: probes run them in ranks and bring back evidence, claims are held against it, see trials."""
