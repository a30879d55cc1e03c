"""Commands, one file a verb: parse, call one workflow, render; exit codes."""
