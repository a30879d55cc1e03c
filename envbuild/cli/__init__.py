"""One module for each verb: parse the options, call one workflow, render its result; exit codes."""
