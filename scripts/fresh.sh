#!/usr/bin/env bash
# Prove the two commands of the README on a bare machine: a Debian 12 made by debootstrap, with nothing but python3,
# make and ca-certificates, in which `make run` answers one message and then `make test` passes.
#
# It tests what is committed (HEAD). From this machine it takes what decides how packages are reached: the apt sources
# of Debian, pip's configuration, proxies, certificates, name resolution, and folders that pip is told to look into
# (mounted read-only). Everything is mounted in a mount namespace of its own: whatever happens, no mount outlives this
# script, and the folder it deletes at the end has never had a mount in the namespace that deletes it.
#
#   FRESH_CACHE   where the bare system is kept as a tarball   (~/.cache/ownloop-fresh)
#   FRESH_KEEP=1  leave the folder of the system there, and say where
set -euo pipefail
export LC_ALL=C DEBIAN_FRONTEND=noninteractive

repo=$(cd "$(dirname "$0")/.." && pwd)
cache=${FRESH_CACHE:-$HOME/.cache/ownloop-fresh}
suite=bookworm
tree=/src/ownloop # inside the bare system
began=$SECONDS

step() { printf '\n── fresh: %s (after %d s)\n' "$*" $((SECONDS - began)); }
die() { echo "fresh: $*" >&2; exit 1; }
size() { du -smx "$@" 2>/dev/null | cut -f1; }

# Print `uri suite component` of each Debian archive that this machine uses.
debian_archives() {
    # shellcheck disable=SC2016  # the names are for apt to fill in
    apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT) $(CODENAME) $(ORIGIN)' 'Identifier: Packages' |
        awk -v suite=$suite '$3 == "main" && index($4, suite) == 1 && $5 == "Debian" { print $1, $2, $3 }' | sort -u
}

# Print the folders that pip reads packages from, one a line: find-links, and indexes given as file:// addresses.
pip_folders() {
    python3 -m pip config list 2>/dev/null | sed -nE "s/^[^=]*(find-links|index-url)='(.*)'$/\1 \2/p" |
        while read -r option values; do
            for value in ${values//\\n/ }; do
                folder=${value#file://}
                case $folder in /*) ;; *) continue ;; esac
                # An index usually links to files in a folder beside it.
                [ "$option" = find-links ] || [ "$(dirname "$folder")" = / ] || folder=$(dirname "$folder")
                [ -d "$folder" ] && [ "$folder" != / ] && echo "$folder"
            done
        done | sort -u
}

# The variables that decide how packages are reached; the bare system gets these and no others.
network_environment() {
    env | grep -E '^(PIP_[A-Z_]+|(https?|ftp|all|no)_proxy|(HTTPS?|FTP|ALL|NO)_PROXY|SSL_CERT_(FILE|DIR)|(REQUESTS|CURL)_CA_BUNDLE)=' || true
}

copy_in() { # copy_in FILE-OR-FOLDER…: to the same place in the bare system, links followed, absent ones skipped
    local path
    for path in "$@"; do
        [ -e "$path" ] || continue
        mkdir -p "$root$(dirname "$path")"
        cp -rL --remove-destination "$path" "$root$(dirname "$path")/"
    done
}

make_bare_system() {
    [ -n "$(find "$tarball" -mtime -30 2>/dev/null)" ] && return
    command -v debootstrap >/dev/null || { apt-get update -qq; apt-get install -y -qq debootstrap >/dev/null; }
    local mirror
    mirror=$(debian_archives | awk -v suite=$suite '$2 == suite { print $1; exit }')
    [ -n "$mirror" ] || die "no Debian $suite archive among the apt sources of this machine"
    debootstrap --variant=minbase --include=python3,make,ca-certificates "$suite" "$root" "$mirror" >"$work/debootstrap.log" ||
        { tail -n 20 "$work/debootstrap.log" >&2; die "debootstrap failed"; }
    rm -rf "$root"/var/cache/apt/archives/*.deb
    tar -C "$root" --one-file-system -cf - . | gzip -1 >"$tarball.new"
    mv "$tarball.new" "$tarball"
    rm -rf --one-file-system "$root"
}

configure() {
    debian_archives | sed 's/^/deb /' >"$root/etc/apt/sources.list"
    apt-config dump | grep -iE '^Acquire::(https?|ftp)::proxy' >"$root/etc/apt/apt.conf.d/99proxy" || true
    copy_in /etc/resolv.conf /etc/hosts /etc/ssl/certs /usr/local/share/ca-certificates /etc/pip.conf /etc/xdg/pip
    mkdir -p "$root$tree"
    git -C "$repo" archive HEAD | tar -x -C "$root$tree"
}

# Runs in its own mount and process namespace; both end with it.
inside() {
    mount -t proc proc "$root/proc"
    mount -t tmpfs -o mode=755 dev "$root/dev"
    local node
    for node in "null 1 3" "zero 1 5" "full 1 7" "random 1 8" "urandom 1 9" "tty 5 0"; do
        # shellcheck disable=SC2086
        set -- $node
        mknod -m 666 "$root/dev/$1" c "$2" "$3"
    done
    mkdir "$root/dev/pts" "$root/dev/shm"
    mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
    mount -t tmpfs shm "$root/dev/shm"
    ln -s pts/ptmx "$root/dev/ptmx"
    ln -s /proc/self/fd "$root/dev/fd"
    local folder
    for folder in $(pip_folders); do
        mkdir -p "$root$folder"
        mount --bind "$folder" "$root$folder"
        mount -o remount,bind,ro "$root$folder"
    done
    local environment=(HOME=/root TERM=xterm-256color LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin) line
    while IFS= read -r line; do [ -z "$line" ] || environment+=("$line"); done < <(network_environment)
    local bare=(env -i "${environment[@]}" chroot "$root" /bin/sh -c "cd $tree && exec \"\$@\"" sh)

    step "make run"
    python3 "$repo/scripts/fresh_chat.py" "${bare[@]}" make run
    report
    step "make test"
    "${bare[@]}" make test
    report
}

report() {
    local mounted=() folder
    for folder in $(pip_folders); do mounted+=("--exclude=$root$folder"); done
    echo "fresh: whole system $(size "$root" "${mounted[@]}") MB, .venv $(size "$root$tree/.venv") MB," \
        "caches in the home folder $(size "$root/root/.cache" || echo 0) MB"
}

if [ "${1-}" = --inside ]; then
    root=$2
    began=-$3
    inside
    exit
fi

[ "$(id -u)" = 0 ] || die "root is needed, to make a bare system and to mount into it"
git -C "$repo" rev-parse -q --verify HEAD >/dev/null || die "there is no commit to test"
[ -z "$(git -C "$repo" status --porcelain)" ] || echo "fresh: only what is committed is tested; the tree has other changes"
mkdir -p "$cache"
tarball=$cache/$suite-$(dpkg --print-architecture).tar.gz
work=$(mktemp -d "${TMPDIR:-/tmp}/ownloop-fresh-XXXXXX")
root=$work/root
cleanup() {
    # Killing it ends all processes of the namespace, and their mounts with them.
    [ -z "${inner-}" ] || { kill -KILL "$inner" 2>/dev/null; wait "$inner" 2>/dev/null; } || true
    if [ "${FRESH_KEEP-}" = 1 ]; then echo "fresh: the system is left in $root"; else rm -rf --one-file-system "$work"; fi
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP

step "a bare Debian $suite"
make_bare_system
mkdir -p "$root"
tar -xzf "$tarball" -C "$root"
configure
echo "fresh: bare system $(size "$root") MB, its tarball $(size "$tarball") MB"
# In the background and waited for, so that a signal to this script is acted on at once.
unshare --mount --pid --fork --kill-child "$0" --inside "$root" $((SECONDS - began)) &
inner=$!
wait "$inner"
inner=
step "passed"
