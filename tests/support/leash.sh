#!/bin/sh
# leash.sh FOLDER CMD …: becomes CMD, which cannot outlive whoever holds the other end of stdin.
#
# A watcher waits for the end of stdin. It comes when the holder exits for any reason, SIGKILL
# included; then CMD and all its descendants are killed and FOLDER is removed. A line on stdin
# ends the leash peacefully: the holder cleans up by itself.
# The watcher stays in CMD's process group, so that its number cannot be given to a stranger,
# but is nobody's descendant. It needs Linux (/proc).

folder=$1
shift
exec 3<&0 </dev/null

# Prints "pid parent" of every process; builtins only, so that it sees no helper of its own.
processes() {
    for stat in /proc/[0-9]*/stat; do
        { read -r line <"$stat"; } 2>/dev/null || continue
        # The name in parentheses may hold anything; after it come state and parent.
        after=${line##*) }
        after=${after#* }
        echo "${line%% *} ${after%% *}"
    done
}

# Prints a process and all its descendants.
family() {
    all=$(processes)
    members=" $1 "
    before=
    while [ "$members" != "$before" ]; do
        before=$members
        while read -r pid parent; do
            case $members in *" $pid "*) continue ;; esac
            case $members in *" $parent "*) members="$members$pid " ;; esac
        done <<END
$all
END
    done
    echo "$members"
}

watch() {
    # The kernel sends SIGHUP to a process group with a stopped member whose parent exits.
    trap '' HUP INT TERM
    exec >/dev/null 2>&1
    read -r _ <&3 && exit 0
    # shellcheck disable=SC2046 # one word per process
    kill -KILL $(family "$1")
    # A server's children may write a little longer than it lives; they are nobody's to wait for.
    tries=0
    until rm -rf "$folder" || [ $tries -ge 100 ]; do
        tries=$((tries + 1))
        # Nobody tells when the last of them has written.
        sleep 0.1
    done
}

( (watch $$) & )
exec 3<&-
exec "$@"
