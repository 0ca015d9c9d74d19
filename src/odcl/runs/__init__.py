"""A run: a table is fitted, compared, told of, saved, drawn, and asked for predictions."""
