"""What must not break envbuild, a module a kind: in part for the suite, whole for `make torture`."""
