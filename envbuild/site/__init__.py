"""This machine as a site: draft its file, compare it, and plan the host libraries of images."""
