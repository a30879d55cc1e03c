#!/bin/bash
# The main job on real input, as a user does it: build, test, module load, and a program in the image.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ -t 2 ]; then bold=$'\033[1m' plain=$'\033[0m'; else bold='' plain=''; fi
say() { printf '\n%s%s%s\n' "$bold" "$*" "$plain" >&2; }
step() {
    printf '\n$' >&2
    for word; do
        case $word in
            *[!A-Za-z0-9_./=@:+,-]*) printf " '%s'" "$word" >&2 ;;
            *) printf ' %s' "$word" >&2 ;;
        esac
    done
    printf '\n' >&2
    "$@"
}

envbuild=${ENVBUILD_DEMO_PROGRAM:-.venv/bin/envbuild}
spec=examples/pytorch-mpi.yaml
image=examples/pytorch-mpi.sif
modules=${ENVBUILD_DEMO_MODULES:-$PWD/build/modules}

mkdir -p build

say "1. Ten lines of YAML"
cat "$spec" >&2

say "2. Build: lock, layers, image"
step "$envbuild" build "$spec" -o "$image"

say "3. Test: do the ranks in it really talk?"
step "$envbuild" test "$image" --report build/report.json

say "4. Activate: module load"
step "$envbuild" module install "$image" --root "$modules"

# Lmod's own initialisation and modulefiles expect an interactive shell's leniency.
set +u
source "$(ls /usr/share/lmod/lmod/init/bash /etc/profile.d/lmod.sh /opt/apps/lmod/lmod/init/bash 2>/dev/null | head -n 1)"
step module use "$modules/modulefiles"
step module load pytorch-mpi/2026.11
step python -c 'import sys, torch; print(f"torch {torch.__version__} on {sys.executable} inside the image")'
set -u

say "Done"
cat >&2 <<END
built:   $PWD/$image
proven:  every line above that says PASS; the report is $PWD/build/report.json
module:  module use $modules/modulefiles && module load pytorch-mpi/2026.11
command: $(realpath -s "$envbuild")
END
