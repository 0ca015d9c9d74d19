#!/usr/bin/env bash
# A whole deployment on this machine: a SuperLink with certificates, a node per table with a key
# that the SuperLink knows, and one run of this app. It stays up for further runs until Ctrl-C.
#
#     ./deploy.sh                          # four nodes that share some made stores
#     ./deploy.sh north.csv south.csv      # pyproject.toml says which columns are what
#
# All of it lies in DIR (default: ./deployment), which has to be new, and listens on PORT (default:
# 9093) and the ports after it, of this machine alone.
set -euo pipefail
app=$(cd "$(dirname "$0")" && pwd)
port=${PORT:-9093}
fail() { echo "$1" >&2; exit 2; }

command -v flower-superlink >/dev/null || fail "Flower is missing: pip install 'odcl[flower]'."
sites=() config=()
for table in "$@"; do
    [ -f "$table" ] || fail "There is no file $table."
    name=$(basename "$table")
    sites+=("${name%%.*}")
    config+=("data=\"$(cd "$(dirname "$table")" && pwd)/$name\"")
done
if [ $# -eq 0 ]; then
    sites=(site-1 site-2 site-3 site-4)
    for i in 0 1 2 3; do config+=("partition-id=$i num-partitions=4"); done
fi
n=${#sites[@]}

mkdir -m 700 "${DIR:=deployment}"
place=$(cd "$DIR" && pwd)
mkdir -p "$place"/{home,logs,models}

export FLWR_HOME=$place/home OMP_NUM_THREADS=1
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 RAY_USAGE_STATS_ENABLED=0
# Flower's programs start others in sessions of their own: all of them inherit this mark.
export ODCL_DEPLOYMENT=$place
stop() {
    trap - EXIT INT TERM
    echo "Ending the deployment."
    ps axeww -o pid=,command= | awk -v mark="ODCL_DEPLOYMENT=$place" -v me=$$ \
        '{ for (i = 2; i <= NF; i++) if ($i == mark && $1 != me) { print $1; next } }' |
        xargs kill 2>/dev/null || true
}
trap stop EXIT
trap 'exit 130' INT TERM

certs=$place/certs
odcl flower certs "$certs" --sites "$(IFS=,; echo "${sites[*]}")" --quiet >/dev/null
cat >"$FLWR_HOME/config.toml" <<END
[superlink]
default = "here"

[superlink.here]
address = "127.0.0.1:$port"
root-certificates = "$certs/ca.crt"
END
flower-superlink --host 127.0.0.1 --port "$port" --database "$place/superlink.db" \
    --isolation subprocess --disable-runtime-dependency-installation --enable-supernode-auth \
    --ssl-ca-certfile "$certs/ca.crt" --ssl-certfile "$certs/server.pem" \
    --ssl-keyfile "$certs/server.key" >"$place/logs/superlink.log" 2>&1 &
until flwr list here >/dev/null 2>&1; do
    kill -0 $! || { tail -5 "$place/logs/superlink.log"; exit 1; }
    sleep 1
done
for i in "${!sites[@]}"; do
    site=${sites[$i]} own=$place/models/${sites[$i]}
    flwr supernode register "$certs/nodes/$site.pub" here --name "$site" >/dev/null
    mkdir "$FLWR_HOME/$site"
    FLWR_HOME=$FLWR_HOME/$site flower-supernode --superlink "127.0.0.1:$port" \
        --root-certificates "$certs/ca.crt" --host 127.0.0.1 --port $((port + 4 + i)) \
        --auth-supernode-private-key "$certs/nodes/$site.key" \
        --node-config "${config[$i]} site=\"$site\" models=\"$own.csv\" ledger=\"$own.ledger\"" \
        >"$place/logs/$site.log" 2>&1 &
done
flwr run "$app" here --stream -c "min-replies=$n nodes=$n result-dir=\"$place/result\""
echo "Result: $place/result. Every node's models: $place/models. Logs: $place/logs."
echo "In another terminal: FLWR_HOME=$FLWR_HOME flwr list here (or: supernode list here; run ...)."
echo "Ctrl-C ends it all."
wait
