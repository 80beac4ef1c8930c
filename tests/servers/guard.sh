# Holds a server for a test process: does what it is told over its standard
# input, and ends the server when that closes, so also when the tests were
# killed and could clean up nothing.
#
# usage: sh -c "$(cat guard.sh)" guard FOLDER COMMAND…

folder=$1
shift
server=

# With these signals, one after the other.
end() {
    [ -n "$server" ] || return
    for signal in "$@"; do kill "-$signal" "$server" 2>/dev/null; done
    wait "$server" 2>/dev/null
    server=
}

# Whatever works inside the folder is the server's own.
end_the_rest() {
    for process in /proc/[0-9]*; do
        case $(readlink "$process/cwd" 2>/dev/null) in
        "$folder" | "$folder"/*) kill -9 "${process#/proc/}" 2>/dev/null ;;
        esac
    done
}

while read -r word; do
    case $word in
    start)
        "$@" </dev/null >>"$folder/log" 2>&1 &
        server=$!
        ;;
    stop) end INT ;;
    kill)
        end KILL
        end_the_rest
        ;;
    esac
    echo "$server"
done

# "At once", in PostgreSQL's words and in PgBouncer's.
end QUIT TERM
end_the_rest
rm -rf "$folder"
