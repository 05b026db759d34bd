#!/bin/sh
# hosts.sh MPIRUN GIBBOUS [RATE [HOSTS [SCRIPT...]]] - a job over hosts: network namespaces of this machine, joined by a
# bridge, whose links are shaped to RATE (1gbit, 50mbit; tbf), with OpenMPI over TCP between them. Without a script:
# training leaves on two and three hosts, at both rates, what it leaves on one process (digests.lua). With one, it runs
# on HOSTS hosts. Exits with 77, and says so, where namespaces are not permitted.
set -u
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 # namespaces want root
mpirun=$1 gibbous=$(realpath "$2")
id=$$
name() { echo "gb$id-$1"; }

folder=$(mktemp -d)
hosts=0
# Namespaces go with what runs in them.
tear_down() {
  while [ $hosts -gt 0 ]; do
    for pid in $(ip netns pids "$(name $hosts)" 2>/dev/null); do kill "$pid" 2>/dev/null; done
    ip link del "gbv$id.$hosts" 2>/dev/null
    ip netns del "$(name $hosts)" 2>/dev/null
    hosts=$((hosts - 1))
  done
  ip link del "gbr$id" 2>/dev/null
}
trap 'tear_down; rm -rf "$folder"' EXIT

# set_up HOSTS RATE - host i has the address 10.177.0.i; the bridge, for mpirun itself, .254.
set_up() {
  ip link add "gbr$id" type bridge && ip addr add 10.177.0.254/24 dev "gbr$id" && ip link set "gbr$id" up || return 1
  while [ $hosts -lt "$1" ]; do
    ip netns add "$(name $((hosts + 1)))" || return 1
    hosts=$((hosts + 1))
    ns=$(name $hosts) link="gbv$id.$hosts"
    ip link add "$link" type veth peer name eth0 netns "$ns" && ip link set "$link" master "gbr$id" up || return 1
    ip -n "$ns" addr add "10.177.0.$hosts/24" dev eth0 && ip -n "$ns" link set eth0 up && ip -n "$ns" link set lo up \
      || return 1
    for end in "tc" "tc -n $ns"; do
      device=eth0
      [ "$end" = tc ] && device=$link
      $end qdisc add dev "$device" root tbf rate "$2" burst 256kb latency 400ms || return 1
    done
  done
}

# What mpirun starts instead of ssh: the command in the namespace of that address, with a host name and a core of its
# own. (mpirun takes the hosts for machines, and would bind the process of each to core 0.)
cat >"$folder/agent" <<AGENT
#!/bin/sh
while [ "\${1#-}" != "\$1" ]; do shift; done
host=\${1##*.}
shift
core=\$(((host - 1) % $(nproc)))
exec taskset -c "\$core" ip netns exec "gb$id-\$host" unshare --uts sh -c "hostname gb-host-\$host; \$*"
AGENT
chmod +x "$folder/agent"

# run_on HOSTS SCRIPT... - one process on each.
run_on() {
  size=$1 list=
  shift
  for i in $(seq "$size"); do list="$list${list:+,}10.177.0.$i:1"; done
  "$mpirun" --bind-to none --mca plm_rsh_agent "$folder/agent" --mca btl tcp,self \
    --mca btl_tcp_if_include 10.177.0.0/24 --mca oob_tcp_if_include 10.177.0.0/24 --host "$list" -n "$size" \
    --wdir "$PWD" "$gibbous" "$@"
}

if ! set_up 1 1gbit 2>"$folder/log"; then
  echo "skipped: network namespaces are not permitted here: $(tail -1 "$folder/log")"
  exit 77
fi
tear_down
if [ $# -gt 4 ]; then
  rate=$3 wanted=$4
  shift 4
  set_up "$wanted" "$rate" && run_on "$wanted" "$@"
  exit $?
fi

passed=0 failed=0
one=$("$gibbous" tests/dist/digests.lua 4) || exit 1
for rate in ${3:-1gbit 50mbit}; do
  for size in ${4:-2 3}; do
    set_up "$size" "$rate" || exit 1
    got=$(run_on "$size" tests/dist/digests.lua 4 2>"$folder/log")
    if [ "$got" = "$one" ]; then passed=$((passed + 1))
    else
      failed=$((failed + 1))
      printf '%s hosts at %s:\n%s\n' "$size" "$rate" "$got"
      cat "$folder/log"
    fi
    tear_down
  done
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
