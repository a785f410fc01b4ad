#!/bin/bash
# A real SLURM on this machine, for the tests: munged, slurmctld and one slurmd a virtual node, on the loopback address.
#   cluster.sh install   Debian's packages, where this is root and there is apt-get; says why not elsewhere, and ends with 0
#   cluster.sh start     idempotent; needs root. SLURM_BASE has its state, logs and configuration
#   cluster.sh restart   the controller alone: ended, then started with its saved state
#   cluster.sh stop      cancels every job, then ends the daemons by their pid files
# No systemd, cgroups or database; nodes n1 to n3 claim 8 CPUs, 64000 MB and 2 GPUs each, whatever the host has.
set -euo pipefail
export PATH="/usr/sbin:/usr/bin:/sbin:/bin:$PATH"
B="${SLURM_BASE:-/tmp/aorta-slurm}"
export SLURM_CONF="$B/etc/slurm.conf"
NODES=3
CPUS=8
GPUS=2
PORT=17817
PACKAGES="slurmctld slurmd slurm-client munge slurm-wlm-basic-plugins"

alive() { # alive PIDFILE NAME: the process of that file lives, is no zombie, and has that name
	local p
	p=$(cat "$1" 2>/dev/null) || return 1
	[ -n "$p" ] && [ -r "/proc/$p/stat" ] || return 1
	case "$(cat "/proc/$p/comm")" in "$2"*) ;; *) return 1 ;; esac
	[ "$(sed 's/.*) //' "/proc/$p/stat" | cut -d' ' -f1)" != Z ]
}

end() { # end PIDFILE NAME SIGNAL: sends it and waits until the process is gone
	local p
	alive "$1" "$2" || { rm -f "$1"; return 0; }
	p=$(cat "$1")
	kill "-$3" "$p"
	for _ in $(seq 150); do
		# A daemon removes its file before it has ended, and pid 1 may reap slowly: a zombie is gone.
		[ -r "/proc/$p/stat" ] && [ "$(sed 's/.*) //' "/proc/$p/stat" | cut -d' ' -f1)" != Z ] || { rm -f "$1"; return 0; }
		sleep 0.1
	done
	echo "cluster.sh: $2 (pid $p) did not end in 15 s, killing it" >&2
	kill -KILL "$p"
	rm -f "$1"
}

install() {
	if command -v slurmctld slurmd munged srun >/dev/null; then return 0; fi
	if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
		echo "cluster.sh: SLURM is not installed and this is not root on Debian; the tests marked slurm will be skipped"
		return 0
	fi
	export DEBIAN_FRONTEND=noninteractive
	# The services would be started as the packages are installed, where there is systemd; ours are our own.
	if { apt-get update -qq && apt-get install -y -qq --no-install-recommends $PACKAGES; } >/tmp/aorta-slurm-install.log 2>&1; then
		echo "cluster.sh: installed $PACKAGES"
	else
		tail -n 5 /tmp/aorta-slurm-install.log
		echo "cluster.sh: SLURM cannot be installed (above); the tests marked slurm will be skipped"
	fi
}

configure() {
	local gpu=gpu node
	cat <<-CONF
		ClusterName=loop
		SlurmctldHost=$(hostname -s)(127.0.0.1)
		SlurmUser=root
		SlurmdUser=root
		AuthType=auth/munge
		AuthInfo=socket=$B/munge/munge.socket
		CredType=cred/munge
		SlurmctldPort=$PORT
		SlurmctldPidFile=$B/pid/slurmctld.pid
		SlurmdPidFile=$B/pid/slurmd-%n.pid
		StateSaveLocation=$B/state
		SlurmdSpoolDir=$B/spool/%n
		SlurmctldLogFile=$B/log/slurmctld.log
		SlurmdLogFile=$B/log/slurmd-%n.log
		# no cgroups, no binding, no accounting database
		ProctrackType=proctrack/linuxproc
		TaskPlugin=task/none
		# who takes more memory than asked for is ended by slurmd's own looks, which need no cgroups
		JobAcctGatherType=jobacct_gather/linux
		JobAcctGatherFrequency=task=1
		JobAcctGatherParams=OverMemoryKill
		AccountingStorageType=accounting_storage/none
		JobCompType=jobcomp/none
		MpiDefault=none
		MailProg=/bin/true
		SwitchType=switch/none
		# cores, memory and GPUs are consumable; more CPUs may be claimed than the host has
		SelectType=select/cons_tres
		SelectTypeParameters=CR_Core_Memory
		SlurmdParameters=config_overrides
		GresTypes=gpu
		# a finished job stays visible to squeue and scontrol this long
		MinJobAge=600
		MaxJobCount=10000
		ReturnToService=2
		KillWait=2
		UnkillableStepTimeout=60
		SlurmctldTimeout=30
		SlurmdTimeout=60
		SchedulerType=sched/backfill
		SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
		DefMemPerCPU=2000
		PreemptType=preempt/partition_prio
		PreemptMode=CANCEL
	CONF
	for node in $(seq "$NODES"); do
		echo "NodeName=n$node NodeHostname=n$node NodeAddr=127.0.0.1 Port=$((PORT + node)) CPUs=$CPUS Boards=1" \
			"SocketsPerBoard=1 CoresPerSocket=$CPUS ThreadsPerCore=1 RealMemory=64000 Gres=gpu:fake:$GPUS Feature=f$node State=UNKNOWN"
	done
	echo "PartitionName=main Nodes=n[1-$NODES] Default=YES MaxTime=INFINITE DefaultTime=60 State=UP PriorityTier=1"
	echo "PartitionName=urgent Nodes=n[1-$NODES] MaxTime=INFINITE DefaultTime=60 State=UP PriorityTier=1"
	# Jobs of the others take its jobs' places.
	echo "PartitionName=low Nodes=n[1-$NODES] MaxTime=INFINITE DefaultTime=60 State=UP PriorityTier=0"
	# One test's alone, which closes it.
	echo "PartitionName=closing Nodes=n[1-$NODES] MaxTime=INFINITE DefaultTime=60 State=UP PriorityTier=1"
}

start() {
	local f try up i changed=0
	mkdir -p "$B"/{etc,log,pid,state,spool,gpu,munge}
	chmod 0755 "$B" "$B"/{etc,log,pid,state,spool,gpu,munge}
	if [ ! -s "$B/munge/munge.key" ]; then
		(umask 077 && dd if=/dev/urandom bs=128 count=1 of="$B/munge/munge.key" status=none)
	fi
	if ! alive "$B/pid/munged.pid" munged; then
		rm -f "$B/munge/munge.socket" "$B/munge/munge.socket.lock"
		munged --socket="$B/munge/munge.socket" --key-file="$B/munge/munge.key" --pid-file="$B/pid/munged.pid" \
			--log-file="$B/log/munged.log" --seed-file="$B/munge/munged.seed" --num-threads=2
	fi
	for _ in $(seq 50); do munge -n -S "$B/munge/munge.socket" >/dev/null 2>&1 && break; sleep 0.1; done
	configure >"$B/etc/slurm.conf.new"
	{
		echo "AutoDetect=off"
		echo "NodeName=n[1-$NODES] Name=gpu Type=fake File=$B/gpu/gpu[0-$((GPUS - 1))]"
	} >"$B/etc/gres.conf.new"
	for i in $(seq 0 $((GPUS - 1))); do
		# A plain file is refused: it must be a device.
		[ -c "$B/gpu/gpu$i" ] || mknod -m 666 "$B/gpu/gpu$i" c 1 3
	done
	mkdir -p /etc/slurm
	for f in slurm.conf gres.conf; do
		cmp -s "$B/etc/$f.new" "$B/etc/$f" 2>/dev/null || changed=1
		mv "$B/etc/$f.new" "$B/etc/$f"
		# Inside a job Snakemake's plugin drops SLURM_CONF, so the file must be where the programs look by themselves.
		if [ -e "/etc/slurm/$f" ] || [ -L "/etc/slurm/$f" ]; then
			[ "$(readlink "/etc/slurm/$f" || true)" = "$B/etc/$f" ] || {
				echo "cluster.sh: /etc/slurm/$f belongs to another SLURM, which is left alone" >&2
				exit 3
			}
		else
			ln -s "$B/etc/$f" "/etc/slurm/$f"
		fi
	done
	if [ "$changed" = 1 ] && alive "$B/pid/slurmctld.pid" slurmctld; then
		echo "cluster.sh: the configuration has changed: stop it first" >&2
		exit 1
	fi
	alive "$B/pid/slurmctld.pid" slurmctld || slurmctld
	for i in $(seq "$NODES"); do
		mkdir -p "$B/spool/n$i"
		alive "$B/pid/slurmd-n$i.pid" slurmd || slurmd -N "n$i"
	done
	for try in $(seq 300); do
		up=$(timeout 3 sinfo -h -N -p main -o '%T' 2>/dev/null | grep -cxE 'idle|mixed|allocated|completing' || true)
		# After a restart the states are the saved ones, so look at the processes too.
		for i in $(seq "$NODES"); do alive "$B/pid/slurmd-n$i.pid" slurmd || up=0; done
		[ "$up" = "$NODES" ] && return 0
		# slurmctld forks first and reads its configuration after: a fatal error shows only here.
		[ "$try" -lt 10 ] || alive "$B/pid/slurmctld.pid" slurmctld || break
		sleep 0.1
	done
	echo "cluster.sh: not all nodes came up" >&2
	timeout 3 sinfo -R >&2 || true
	for f in "$B"/log/slurm*.log; do echo "== $f" >&2 && tail -n 8 "$f" >&2; done
	exit 1
}

stop() {
	local f
	if timeout 3 squeue -h -o %A >/dev/null 2>&1; then
		squeue -h -o %A | sort -u | xargs -r scancel
		for _ in $(seq 100); do [ -z "$(squeue -h -o %A 2>/dev/null)" ] && break; sleep 0.1; done
	fi
	for f in "$B"/pid/slurmd-*.pid; do [ -e "$f" ] && end "$f" slurmd TERM; done
	end "$B/pid/slurmctld.pid" slurmctld TERM
	end "$B/pid/munged.pid" munged TERM
	for f in slurm.conf gres.conf; do
		[ "$(readlink "/etc/slurm/$f" 2>/dev/null)" = "$B/etc/$f" ] && rm -f "/etc/slurm/$f"
	done
	return 0
}

case "${1:-}" in
install | start | stop) "$1" ;;
restart)
	end "$B/pid/slurmctld.pid" slurmctld TERM
	slurmctld
	;;
*)
	echo "cluster.sh: give install, start, restart or stop" >&2
	exit 2
	;;
esac
