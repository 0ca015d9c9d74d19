"""What a fit leaves behind: one value that predicts, places users and lies on disk."""
