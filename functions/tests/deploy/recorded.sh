# Runs the command of a function, and appends all of its output to a file: sh recorded.sh <file> <command…>
file=$1
shift
exec "$@" >>"$file" 2>&1
