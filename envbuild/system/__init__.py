"""The only place that starts a process, opens a connection, reads a clock, probes the host."""
