# Runs a command as a function, and keeps all of its output: sh recorded.sh <file> <command…>
file=$1
shift
exec "$@" >>"$file" 2>&1
