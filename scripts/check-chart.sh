#!/usr/bin/env bash
# Checks deploy/chart, or with `render` writes deploy/manifests anew. Helm's library and the schemas of Kubernetes come
# from PyPI into a Python environment under target/tools, in the versions of deploy/check/requirements.txt.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=$PWD/target/tools/chart-venv
requirements=deploy/check/requirements.txt
if ! cmp -s "$requirements" "$venv/installed.txt"; then
    python3 -c 'import ensurepip, venv' 2>/dev/null || bash scripts/setup.sh python3-venv
    echo "installing what checks the chart, once"
    rm -rf "$venv"
    python3 -m venv "$venv"
    if ! "$venv/bin/pip" install --quiet --disable-pip-version-check --retries 2 --no-deps -r "$requirements"; then
        echo "error: the chart can't be checked: $requirements could not be installed" >&2
        echo "hint: pip needs PyPI, or an index that has these (pip config set global.index-url)" >&2
        exit 1
    fi
    cp "$requirements" "$venv/installed.txt"
fi
PYTHONDONTWRITEBYTECODE=1 "$venv/bin/python" deploy/check/chart.py "${1:-check}"
