"""Privacy for rows: every upload is (epsilon, delta)-differentially private by itself."""
