"""Sites: draft and compare the file of this machine, plan the host libraries of images."""
