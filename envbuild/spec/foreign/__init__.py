"""Definition files and Dockerfiles of others: what in them a spec can say. Text in, proposal out."""
