#!/bin/sh
# Install envbuild from this directory, without a network: sh install.sh DIRECTORY [PYTHON]
# DIRECTORY must not exist, and stays where it is: its programs name it. PYTHON is python3 if absent.
set -eu
if [ $# -lt 1 ] || [ $# -gt 2 ]; then
    echo "usage: sh install.sh DIRECTORY [PYTHON]" >&2
    exit 2
fi
case $1 in
    /*) directory=$1 ;;
    *) directory=$PWD/$1 ;;
esac
python=${2:-python3}
bundle=$(cd "$(dirname "$0")" && pwd)
if [ -e "$directory" ]; then
    echo "error: \`$directory\` exists; name another directory, or remove it" >&2
    exit 2
fi
if ! "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))'; then
    echo "error: \`$python\` is not Python 3.11 to 3.14; name one: sh install.sh $1 /usr/bin/python3.12" >&2
    exit 5
fi
# Debian has what `venv` needs to bring pip apart; the bundle has pip. Settings of pip do not count.
"$python" -m venv --without-pip "$directory"
if ! PYTHONPATH=$(echo "$bundle"/wheels/pip-*.whl) PIP_CONFIG_FILE=/dev/null "$directory/bin/python" -m pip \
    --isolated install --quiet --disable-pip-version-check --no-cache-dir --no-index \
    --find-links "$bundle/wheels" --only-binary :all: --require-hashes --no-deps \
    -r "$bundle/requirements.txt"; then
    rm -rf "$directory"
    echo "error: nothing was installed; the lines above say why" >&2
    exit 5
fi
echo "installed: $directory/bin/envbuild"
echo "next: $directory/bin/envbuild doctor"
