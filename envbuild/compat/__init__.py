"""What fits together: facts, rules as data, and the engine that judges them; pure."""
