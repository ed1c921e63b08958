#!/bin/sh
# Installs what the Python and Node.js examples need into a folder of its own:
#   docs/examples/install.sh FOLDER [python] [node]
# Afterwards FOLDER/venv/bin/python runs consumer.py, and consumer.mjs runs from FOLDER/node.
# May be run again. Needs python3 with venv; node and npm. Exits 3 if these are missing.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:?say where to install}
shift
[ $# -gt 0 ] || set -- python node

missing() {
    echo "install.sh: $* is missing" >&2
    exit 3
}

install_python() {
    python3 -c 'import ensurepip, venv' 2>/dev/null || missing "python3 with venv and ensurepip"
    [ -x "$folder/venv/bin/python" ] || python3 -m venv "$folder/venv"
    "$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        -r "$here/requirements.txt"
}

install_node() {
    for program in node npm; do
        command -v "$program" >/dev/null || missing "$program"
    done
    mkdir -p "$folder/node"
    cp "$here/package.json" "$here/consumer.mjs" "$folder/node/"
    (cd "$folder/node" && npm install --silent --no-audit --no-fund)
}

mkdir -p "$folder"
for language in "$@"; do
    case $language in
        python | node) "install_$language" ;;
        *) echo "install.sh: python or node, not $language" >&2; exit 2 ;;
    esac
done
