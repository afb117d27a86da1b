package foreign

import (
	"slices"
	"strings"
)

// Flag returns the reason for a missing flag. path has the words of the command without the program's name, and name is the
// flag's long or short name without dashes.
func Flag(path, name string) (Reason, bool) {
	command := shortForm(path)
	for _, e := range entries() {
		if slices.Contains(strings.Fields(e.flags), name) && (e.commands == "" || slices.Contains(strings.Split(e.commands, ","), command)) {
			return Reason{e.text, e.nothing}, true
		}
	}
	return Reason{}, false
}

// shortForm returns a command's form without the name of its group where it has one.
func shortForm(path string) string {
	group, command, ok := strings.Cut(path, " ")
	switch {
	case !ok || command == "inspect" || command == "prune":
		return path
	case group == "container" && command == "ls":
		return "ps"
	case group == "image" && command == "ls":
		return "images"
	case group == "image" && command == "rm":
		return "rmi"
	case group == "container", group == "image", path == "system info", path == "system events":
		return command
	}
	return path
}

// entry is the reason for some flags of some commands.
type entry struct {
	commands string // separated by commas; "" is every command
	flags    string // long and short names, separated by spaces
	text     string
	nothing  bool
}

const (
	makes   = "create,run"
	windows = "it limits containers of Windows"
	trust   = "images.policy decides which images may run: see docs/guide/image-policy.md"
	cluster = "it is for cluster volumes, which belong to a Swarm's managers"
)

// entries are all missing flags.
func entries() []entry {
	return slices.Concat(programEntries(), createEntries(), otherEntries())
}

// programEntries are the flags that docker takes before a command's name.
func programEntries() []entry {
	return []entry{
		{"", "host H context", "use --socket or --guest to name another agent", false},
		{"", "c", "docker's -c is its context: use --socket or --guest to name another agent", false},
		{"", "l", "docker's -l is its level of logs: use longshore agent with agent.log_level in its configuration", false},
		{"", "debug D log-level", "the command line writes no log: use longshore agent with agent.log_level in its configuration", false},
		{"", "tls tlscacert tlscert tlskey tlsverify", "the control API is a unix socket, which needs no certificates", true},
	}
}

// createEntries are the flags of create, run and update.
func createEntries() []entry {
	return []entry{
		{"create", "attach a", "create attaches nothing: use start -a", false},
		{makes, "cgroup-parent", "the agent chooses the cgroup: use engine.cgroup_root in its configuration", false},
		{makes, "cpu-count cpu-percent io-maxbandwidth io-maxiops isolation", windows, true},
		{"create,run,update", "cpu-rt-period cpu-rt-runtime", "there are no real-time groups: use --ulimit rtprio=N with --cap-add SYS_NICE", false},
		{"create,run,pull,push", "disable-content-trust", trust, true},
		{makes, "kernel-memory", "the kernel has no limit of its own memory any more: use --memory", false},
		{makes, "link-local-ip", "use --ip, or --network name=NETWORK,ip=ADDRESS", false},
		{makes, "storage-opt", "use --disk SIZE", false},
		{makes, "use-api-socket", "there is no socket of Docker's API: use -v /run/longshore/control.sock:/run/longshore/control.sock", false},
		{makes, "volume-driver", "use volume create -o type=… -o device=…, and name the volume with -v", false},
		{"update", "blkio-weight", "use create --blkio-weight", false},
		{"start", "checkpoint checkpoint-dir", "use longshore restore", false},
	}
}

// otherEntries are the flags of all other commands.
func otherEntries() []entry {
	return []entry{
		{"history,image inspect,rmi", "platform", "an image has one platform here: use pull --platform for another one", false},
		{"images", "tree", "an image has one platform here: use images --json", false},
		{"logs", "details", "logs keep no attributes: use inspect to see labels", false},
		{"network connect", "gw-priority link link-local-ip", "use --alias, --ip, --ip6 or --mac-address; the first network with a way out has the default route", false},
		{"network create", "config-from config-only ipam-opt", "a network has its own configuration: use --subnet, --gateway, --ip-range and --aux-address", false},
		{"network create", "ingress", "the routing mesh belongs to a Swarm's managers", true},
		{"network inspect", "verbose v", "networks of a Swarm belong to its managers: use docker network inspect there", false},
		{"pull", "all-tags a", "use pull with each tag", false},
		{"push", "all-tags a platform", "use push with each tag", false},
		{"rm", "link l", "there are no links: use network disconnect", false},
		{"rmi", "no-prune", "an image's layers are removed when no other image has them: use tag to keep the image", false},
		{"export,load", "platform", "an image has one platform here: use pull --platform for another one", false},
		{"swarm join", "advertise-addr data-path-addr listen-addr", "use face.swarm.advertise_addr in the agent's configuration", false},
		{"swarm leave", "force f", "a worker can always leave: use swarm leave without it", false},
		{"volume create", "availability group limit-bytes required-bytes scope secret sharing topology-preferred topology-required type", cluster, true},
		{"volume ls", "cluster", cluster, true},
	}
}
