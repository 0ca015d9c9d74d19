"""What the commands do, behind ``cli``: options, runs, their folders, the demo."""
