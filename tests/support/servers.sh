#!/bin/sh
# Finds or fetches PostgreSQL, RabbitMQ and PgBouncer *binaries* for the tests and the demo, and
# what else tests ask: libfaketime, a headless Chromium, promtool.
#
# What the system has is used as it is. What is missing is fetched as Debian packages and
# unpacked into a cache folder. Nothing is ever installed: installing Debian's packages would
# start system services on this machine. No server is started here either.
#
#   servers.sh [print]    make them available, print their places as KEY=value lines
#   servers.sh find       the same without any download; exit 1 if something is missing
#   servers.sh run CMD …  make them available, then run CMD with the places in its environment
#
# The cache folder is $OUTBOX_RELAY_SERVERS_DIR, else /var/cache/outbox-relay/servers for root
# (PostgreSQL then runs as an unprivileged user, who could not read root's home), else
# ${XDG_CACHE_HOME:-$HOME/.cache}/outbox-relay/servers. It may be deleted at any time.
# A test fails that misses something, unless OUTBOX_RELAY_TEST_WITHOUT names it, as in
# "chromium,promtool" (also pgbouncer, faketime); that is not fetched, and its tests are left out.
# Two of these may run at once. Already set OUTBOX_RELAY_TEST_POSTGRES_BIN and
# OUTBOX_RELAY_TEST_RABBITMQ_SBIN (+ OUTBOX_RELAY_TEST_ERLANG_BIN) are taken as given.
set -eu

MIN_POSTGRES=13 # xid8 and pg_current_xact_id()

say() { printf 'servers.sh: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }

cache_folder() {
    if [ -n "${OUTBOX_RELAY_SERVERS_DIR:-}" ]; then
        printf '%s\n' "$OUTBOX_RELAY_SERVERS_DIR"
    elif [ "$(id -u)" = 0 ]; then
        printf '/var/cache/outbox-relay/servers\n'
    else
        [ -n "${XDG_CACHE_HOME:-}${HOME:-}" ] ||
            die "neither OUTBOX_RELAY_SERVERS_DIR nor HOME is set: say where binaries may be kept"
        printf '%s/outbox-relay/servers\n' "${XDG_CACHE_HOME:-$HOME/.cache}"
    fi
}

# --- finding -------------------------------------------------------------------------------

# The colon-separated folders of shared libraries that were unpacked below $1.
libraries() {
    found=
    # Some libraries keep others in a folder of their own, of which they know the installed place.
    for folder in "$1"/usr/lib/*-linux-gnu* "$1"/lib/*-linux-gnu* "$1"/usr/lib/*-linux-gnu*/pulseaudio; do
        [ -d "$folder" ] && found="${found:+$found:}$folder"
    done
    printf '%s\n' "$found"
}

# Runs a command with extra library folders, which may be none.
with_libraries() {
    folders=$1
    shift
    if [ -n "$folders" ]; then
        LD_LIBRARY_PATH="$folders${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$@"
    else
        "$@"
    fi
}

postgres_works() { # BIN
    [ -x "$1/initdb" ] && [ -x "$1/postgres" ] || return 1
    major=$("$1/postgres" --version 2>/dev/null |
        sed -n 's/^postgres (PostgreSQL) \([0-9]*\).*/\1/p')
    [ "${major:-0}" -ge "$MIN_POSTGRES" ]
}

# Sets POSTGRES_BIN.
find_postgres() {
    if [ -n "${OUTBOX_RELAY_TEST_POSTGRES_BIN:-}" ]; then
        POSTGRES_BIN=$OUTBOX_RELAY_TEST_POSTGRES_BIN
        postgres_works "$POSTGRES_BIN" ||
            die "OUTBOX_RELAY_TEST_POSTGRES_BIN=$POSTGRES_BIN holds no working PostgreSQL" \
                "$MIN_POSTGRES or newer; correct it or unset it"
        return 0
    fi
    if on_path=$(command -v postgres); then
        POSTGRES_BIN=$(dirname "$(readlink -f "$on_path")")
        postgres_works "$POSTGRES_BIN" && return 0
    fi
    for POSTGRES_BIN in $(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -t/ -k5 -rn); do
        postgres_works "$POSTGRES_BIN" && return 0
    done
    POSTGRES_BIN=$CACHE/postgresql/bin
    postgres_works "$POSTGRES_BIN"
}

rabbitmq_works() { # SBIN ERLANG_BIN LIBS
    [ -x "$1/rabbitmq-server" ] && [ -x "$1/rabbitmqctl" ] && [ -x "$2/erl" ] || return 1
    # The tests manage their brokers through erl_call, and epmd must be their own.
    [ -x "$2/epmd" ] && [ -x "$2/erl_call" ] || return 1
    with_libraries "$3" "$2/erl" -boot start_clean -noshell -eval \
        '{ok, _} = application:ensure_all_started(crypto), halt(0).' >/dev/null 2>&1 </dev/null
}

# The real scripts, not Debian's wrappers, which insist on the user "rabbitmq".
rabbitmq_scripts() {
    ls -d /usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin 2>/dev/null | sort -rV || true
    if on_path=$(command -v rabbitmq-server); then
        dirname "$(readlink -f "$on_path")"
    fi
}

# The folder of the Erlang that belongs to `erl` on the PATH.
erlang_bin() {
    if on_path=$(command -v erl); then
        dirname "$(readlink -f "$on_path")"
    else
        printf '/usr/lib/erlang/bin\n'
    fi
}

# Sets RABBITMQ_SBIN, ERLANG_BIN and RABBITMQ_LIBS.
find_rabbitmq() {
    RABBITMQ_LIBS=${OUTBOX_RELAY_TEST_RABBITMQ_LIBS:-}
    if [ -n "${OUTBOX_RELAY_TEST_RABBITMQ_SBIN:-}" ]; then
        RABBITMQ_SBIN=$OUTBOX_RELAY_TEST_RABBITMQ_SBIN
        ERLANG_BIN=${OUTBOX_RELAY_TEST_ERLANG_BIN:-$(erlang_bin)}
        rabbitmq_works "$RABBITMQ_SBIN" "$ERLANG_BIN" "$RABBITMQ_LIBS" ||
            die "OUTBOX_RELAY_TEST_RABBITMQ_SBIN=$RABBITMQ_SBIN with Erlang in $ERLANG_BIN" \
                "does not work; correct it and OUTBOX_RELAY_TEST_ERLANG_BIN, or unset both"
        return 0
    fi
    RABBITMQ_LIBS=
    ERLANG_BIN=$(erlang_bin)
    for RABBITMQ_SBIN in $(rabbitmq_scripts); do
        rabbitmq_works "$RABBITMQ_SBIN" "$ERLANG_BIN" "" && return 0
    done
    RABBITMQ_LIBS=$(libraries "$CACHE/rabbitmq")
    ERLANG_BIN=$CACHE/rabbitmq/usr/lib/erlang/bin
    for RABBITMQ_SBIN in "$CACHE"/rabbitmq/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin; do
        rabbitmq_works "$RABBITMQ_SBIN" "$ERLANG_BIN" "$RABBITMQ_LIBS" && return 0
    done
    return 1
}

# Sets PGBOUNCER and PGBOUNCER_LIBS.
find_pgbouncer() {
    PGBOUNCER_LIBS=
    PGBOUNCER=${OUTBOX_RELAY_TEST_PGBOUNCER:-$(command -v pgbouncer || printf /usr/sbin/pgbouncer)}
    "$PGBOUNCER" --version >/dev/null 2>&1 && return 0
    PGBOUNCER=$CACHE/pgbouncer/usr/sbin/pgbouncer
    PGBOUNCER_LIBS=$(libraries "$CACHE/pgbouncer")
    [ -x "$PGBOUNCER" ] && with_libraries "$PGBOUNCER_LIBS" "$PGBOUNCER" --version >/dev/null 2>&1 &&
        return 0
    PGBOUNCER=
    return 1
}

# Sets FAKETIME, a library that tells programs another time.
find_faketime() {
    for FAKETIME in ${OUTBOX_RELAY_TEST_FAKETIME:-} /usr/lib/*-linux-gnu*/faketime/libfaketime.so.1 \
        "$CACHE"/libfaketime/usr/lib/*-linux-gnu*/faketime/libfaketime.so.1; do
        [ -f "$FAKETIME" ] && return 0
    done
    FAKETIME=
    return 1
}

# Sets CHROMIUM and CHROMIUM_LIBS.
find_chromium() {
    CHROMIUM_LIBS=
    for CHROMIUM in ${OUTBOX_RELAY_TEST_CHROMIUM:-} $(command -v chromium) \
        $(command -v chromium-browser) $(command -v google-chrome); do
        # Some are a hint where to get it.
        "$CHROMIUM" --version >/dev/null 2>&1 </dev/null && return 0
    done
    CHROMIUM=$CACHE/chromium-headless-shell/usr/lib/chromium/chromium-headless-shell
    CHROMIUM_LIBS=$(libraries "$CACHE/chromium-headless-shell")
    [ -f "${CHROMIUM%/*}/icudtl.dat" ] && with_libraries "$CHROMIUM_LIBS" "$CHROMIUM" --version >/dev/null 2>&1 &&
        return 0
    CHROMIUM=
    return 1
}

# Sets PROMTOOL.
find_promtool() {
    for PROMTOOL in ${OUTBOX_RELAY_TEST_PROMTOOL:-} $(command -v promtool) \
        "$CACHE/prometheus/usr/bin/promtool"; do
        "$PROMTOOL" --version >/dev/null 2>&1 && return 0
    done
    PROMTOOL=
    return 1
}

# Is this to be left out?
without() { # NAME
    case ",$(printf %s "${OUTBOX_RELAY_TEST_WITHOUT:-}" | tr ' ' ,)," in
        *,"$1",*) return 0 ;;
        *) return 1 ;;
    esac
}

# --- fetching ------------------------------------------------------------------------------

# apt-get without root, with or without package lists of our own.
apt() {
    set -- -q -o Debug::NoLocking=true -o Dir::Cache="$CACHE/apt/cache" \
        -o Dir::Log="$CACHE/apt" -o APT::Sandbox::User="$(id -un)" "$@"
    if [ "$own_lists" = yes ]; then
        set -- -o Dir::State::lists="$CACHE/apt/lists" "$@"
    fi
    LC_ALL=C DEBIAN_FRONTEND=noninteractive apt-get "$@"
}

# Which packages are needed for $1: itself, its runtime and libraries this system lacks. Not
# the maintainers' tools around them, which matter only to an installed service; nor LLVM, so
# that PostgreSQL does not compile its queries.
needed() {
    apt install --simulate --no-install-recommends -y "$1" 2>"$CACHE/apt/log" |
        awk '$1 == "Inst" { print $2 }' |
        grep -E '^(erlang-|(rabbitmq-server|pgbouncer|chromium-(headless-shell|common)|prometheus)$|postgresql-(client-)?[0-9]+$|lib)' |
        grep -Ev '^(libllvm|libclang|libz3|libpython|lib.*-perl$|libperl|libjs-)'
}

download() { # PACKAGE, into the current folder
    packages=$(needed "$1") && [ -n "$packages" ] &&
        # shellcheck disable=SC2086 # one word per package
        apt download $packages >>"$CACHE/apt/log" 2>&1
}

fetch() { # NAME PACKAGE
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || return 1
    rm -rf "$CACHE/$1" "$CACHE/apt/$1"
    mkdir -p "$CACHE/apt/cache/archives/partial" "$CACHE/apt/lists/partial" "$CACHE/apt/$1"
    cd "$CACHE/apt/$1"
    say "fetching $2 and what it needs into $CACHE (nothing is installed) …"
    own_lists=no
    # Lists may be missing (container images) or older than the archive's packages.
    if ! download "$2"; then
        own_lists=yes
        apt update >"$CACHE/apt/log" 2>&1 && download "$2" || {
            tail -n 20 "$CACHE/apt/log" >&2
            die "apt-get could not fetch $2 (its words are above): check the network and" \
                "/etc/apt/sources.list, or install $2 yourself, then run again"
        }
    fi
    mkdir -p "$CACHE/$1.new"
    for package in *.deb; do
        dpkg-deb -x "$package" "$CACHE/$1.new"
    done
    cd "$CACHE"
    relocate_erlang "$1"
    relocate_postgres "$1"
    mv "$1.new" "$1"
    rm -rf apt
}

# Debian's Erlang scripts know only the folder they are installed to.
relocate_erlang() { # NAME
    for script in "$CACHE/$1.new"/usr/lib/erlang/bin/erl "$CACHE/$1.new"/usr/lib/erlang/bin/start; do
        [ -f "$script" ] || continue
        sed -i "s|ROOTDIR=/usr/lib/erlang$|ROOTDIR='$CACHE/$1/usr/lib/erlang'|" "$script"
    done
}

# PostgreSQL's programs find their own files, but not unpacked libraries: each gets a script in
# bin/ that says where these are.
relocate_postgres() { # NAME
    for program in "$CACHE/$1.new"/usr/lib/postgresql/*/bin/*; do
        [ -x "$program" ] || continue
        place=$CACHE/$1/${program#"$CACHE/$1.new/"}
        mkdir -p "$CACHE/$1.new/bin"
        cat >"$CACHE/$1.new/bin/${program##*/}" <<END
#!/bin/sh
export LD_LIBRARY_PATH="$(libraries "$CACHE/$1.new" | sed "s|$CACHE/$1.new|$CACHE/$1|g")\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}"
exec "$place" "\$@"
END
        chmod 755 "$CACHE/$1.new/bin/${program##*/}"
    done
    # Present but without LLVM it would fail queries; absent it is not used.
    rm -f "$CACHE/$1.new"/usr/lib/postgresql/*/lib/llvmjit.so
}

# --- commands ------------------------------------------------------------------------------

# What only some tests need.
TOOLS="pgbouncer faketime chromium promtool"

package_of() { # TOOL
    case $1 in
        faketime) echo libfaketime ;;
        chromium) echo chromium-headless-shell ;;
        promtool) echo prometheus ;;
        *) echo "$1" ;;
    esac
}

# Looks for all of them; fails if one is missing that is not to be left out.
find_tools() {
    all_found=0
    for tool in $TOOLS; do
        "find_$tool" || without "$tool" || all_found=1
    done
    return $all_found
}

provide() {
    find_postgres && find_rabbitmq && find_tools && return 0
    mkdir -p "$CACHE" || die "cannot create $CACHE: set OUTBOX_RELAY_SERVERS_DIR to a folder of yours"
    chmod 755 "$CACHE"
    # Another run may be fetching right now: wait for it, then look again.
    exec 9>"$CACHE/lock"
    flock 9
    rm -rf "$CACHE"/*.new
    find_postgres || { (fetch postgresql postgresql) && find_postgres; } || missing \
        "PostgreSQL $MIN_POSTGRES or newer (initdb, postgres)" "/usr/lib/postgresql/*/bin"
    find_rabbitmq || { (fetch rabbitmq rabbitmq-server) && find_rabbitmq; } || missing \
        "RabbitMQ with Erlang (rabbitmq-server, rabbitmqctl, erl, epmd, erl_call)" \
        "/usr/lib/rabbitmq/lib/*/sbin"
    for tool in $TOOLS; do
        package=$(package_of "$tool")
        "find_$tool" || without "$tool" || { (fetch "$package" "$package") && "find_$tool"; } ||
            say "no $tool: its tests fail, unless OUTBOX_RELAY_TEST_WITHOUT names it"
    done
    exec 9>&-
}

missing() { # WHAT FOLDER
    die "no usable $1 on the PATH, in $2 or in $CACHE. On Debian or Ubuntu run" \
        "'tests/support/servers.sh' with network access: it fetches without installing." \
        "Elsewhere install it (it need not be running) and put its programs on the PATH."
}

locate() {
    find_postgres || missing "PostgreSQL $MIN_POSTGRES or newer (initdb, postgres)" \
        "/usr/lib/postgresql/*/bin"
    find_rabbitmq || missing \
        "RabbitMQ with Erlang (rabbitmq-server, rabbitmqctl, erl, epmd, erl_call)" \
        "/usr/lib/rabbitmq/lib/*/sbin"
    find_tools || true
}

places() {
    cat <<END
OUTBOX_RELAY_TEST_POSTGRES_BIN=$POSTGRES_BIN
OUTBOX_RELAY_TEST_RABBITMQ_SBIN=$RABBITMQ_SBIN
OUTBOX_RELAY_TEST_RABBITMQ_LIBS=$RABBITMQ_LIBS
OUTBOX_RELAY_TEST_ERLANG_BIN=$ERLANG_BIN
OUTBOX_RELAY_TEST_PGBOUNCER=$PGBOUNCER
OUTBOX_RELAY_TEST_PGBOUNCER_LIBS=$PGBOUNCER_LIBS
OUTBOX_RELAY_TEST_FAKETIME=$FAKETIME
OUTBOX_RELAY_TEST_CHROMIUM=$CHROMIUM
OUTBOX_RELAY_TEST_CHROMIUM_LIBS=$CHROMIUM_LIBS
OUTBOX_RELAY_TEST_PROMTOOL=$PROMTOOL
OUTBOX_RELAY_TEST_CACHE=$CACHE
END
}

CACHE=$(cache_folder)
case ${1:-print} in
    print) provide && places ;;
    find) locate && places ;;
    run)
        shift
        [ $# -gt 0 ] || die "run: which command?"
        provide
        while IFS= read -r place; do
            export "${place?}"
        done <<END
$(places)
END
        exec "$@"
        ;;
    -h | --help | help) sed -n '2,/^set -eu/{/^set -eu/!p}' "$0" | sed 's/^# \{0,1\}//' ;;
    *) die "unknown command '$1': print, find or run (see --help)" ;;
esac
