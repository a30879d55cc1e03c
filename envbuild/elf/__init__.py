"""What a binary asks for and offers, and what the loader would make of it; pure."""
