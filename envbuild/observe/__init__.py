"""Records of observed ranks: read as a stranger's text, and screened for what slows a job. Pure."""
