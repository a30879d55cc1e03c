"""What a finished image would load, known without running it."""
