#!/bin/sh
# Installs what the Python and Node.js examples need into a folder of its own:
#   docs/examples/install.sh FOLDER
# Afterwards FOLDER/venv/bin/python runs consumer.py, and consumer.mjs runs from FOLDER/node.
# May be run again. Needs python3 with venv, node and npm.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:?say where to install}
for program in python3 node npm; do
    command -v "$program" >/dev/null || { echo "install.sh: $program is missing" >&2; exit 1; }
done
mkdir -p "$folder/node"
[ -x "$folder/venv/bin/python" ] || python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$here/requirements.txt"
cp "$here/package.json" "$here/consumer.mjs" "$folder/node/"
(cd "$folder/node" && npm install --silent --no-audit --no-fund)
