"""Run the plan's steps in a sandbox, and turn each result into one canonical squashfs."""
