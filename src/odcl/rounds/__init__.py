"""Methods that take rounds: what users answer to a broadcast, and how answers become models."""
