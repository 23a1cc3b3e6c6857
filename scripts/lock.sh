#!/usr/bin/env bash
# Make the hashed requirement files from pyproject.toml. One resolution for Python 3.11 and later, Linux and macOS.
# Releases younger than a week are left out: a bad one is usually found by then. LOCK_COOLDOWN="0 days" lifts that.
set -euo pipefail
cd "$(dirname "$0")/.."

compile() { # compile NAME OPTION…
    local out="requirements/$1.txt"
    shift
    # No index and no header goes into the file: it must not say where anybody gets packages from.
    .venv/bin/uv pip compile pyproject.toml --quiet --no-config --upgrade --universal --python-version 3.11 \
        --exclude-newer "${LOCK_COOLDOWN:-7 days}" --generate-hashes \
        --no-emit-index-url --no-emit-find-links --no-header --output-file "$out" "$@"
    echo "lock: $out, $(grep -c '^[a-z].*==' "$out") packages"
}

# The largest set decides; the others are held to its versions.
compile dev --all-extras --group dev
compile run --extra local --group build --constraint requirements/dev.txt
compile core --constraint requirements/dev.txt
