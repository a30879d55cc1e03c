"""Models of spec, recipe, base image and site, their loader, and the checks across them."""
