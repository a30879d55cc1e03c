"""The problems of this machine: the verbs that they concern, and the command that fixes each."""
