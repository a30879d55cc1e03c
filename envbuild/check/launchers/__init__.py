"""How ranks are started: a closed list, one small module each."""
