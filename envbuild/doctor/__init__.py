"""What this machine lacks for which verb, and the command that mends it."""
