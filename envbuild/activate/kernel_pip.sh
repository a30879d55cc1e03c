#!/bin/sh
# `pip` in the cells of a kernel that envbuild installed: its image does not change.
case ${1-} in
    install | uninstall)
        printf '%s\n' "envbuild: an image does not change; in a terminal outside of the kernel:" \
            "  envbuild extend '$SINGULARITY_CONTAINER' --python NAME -o NEW.sif" \
            "  envbuild kernel install NEW.sif --name NEW" \
            "and choose that kernel" >&2
        exit 2
        ;;
esac
exec python3 -m pip "$@"
