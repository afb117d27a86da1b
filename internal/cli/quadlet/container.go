package quadlet

import (
	"encoding/json"
	"fmt"
	"math"
	"path"
	"strings"

	"github.com/longshore/longshore/internal/cli/runflags"
	"github.com/longshore/longshore/internal/cli/typed"
	"github.com/longshore/longshore/internal/cli/unitfile"
)

// Notes of several keys.
const (
	noArgs   = "flags of podman are not flags of longshore: use the other keys"
	noConf   = "Longshore does not read containers.conf"
	noIDs    = "ids of the node cannot be chosen: use UserNS=auto"
	noPods   = "there are no pods: put the containers on one .network"
	noRetry  = "ignored: a pull is not repeated; systemd repeats the start (Restart=)"
	noNested = "SELinux labels cannot be set in a container"
	noProbe  = "there is no second check for the start: use HealthStartPeriod="
	healthy5 = "ignored: the last five results are kept (longshore inspect)"
)

// containerKeys are the keys of [Container].
func containerKeys() []Key {
	const c = "Container"
	return []Key{
		{c, "AddCapability", Works, "", words("cap-add")},
		{c, "AddDevice", Works, "", addDevice},
		{c, "AddHost", Works, "", each("add-host")},
		{c, "Annotation", Works, "", pairs("annotation")},
		{c, "AppArmor", Works, "", prefixed("security-opt", "apparmor=")},
		{
			c, "AutoUpdate", Differs, "ignored: Longshore updates no images by itself; use Pull=always and restart the service",
			ignored("ignored: Longshore updates no images by itself; use Pull=always and restart the service"),
		},
		{c, "CgroupsMode", Differs, "ignored: the container is in the agent's cgroup; `disabled` is refused", cgroupsMode},
		{c, "ContainerName", Works, "", nil},
		{c, "ContainersConfModule", Refused, noConf, never},
		{c, "DNS", Works, "", each("dns")},
		{c, "DNSOption", Works, "", each("dns-option")},
		{c, "DNSSearch", Works, "", each("dns-search")},
		{c, "DropCapability", Works, "", words("cap-drop")},
		{c, "Entrypoint", Works, "", nil},
		{c, "Environment", Works, "", pairs("env")},
		{c, "EnvironmentFile", Works, "", environmentFile},
		{c, "EnvironmentHost", Refused, "the environment of the node is not the container's: use Environment=", unlessFalse},
		{c, "Exec", Works, "", nil},
		{c, "ExposeHostPort", Works, "", each("expose")},
		{c, "GIDMap", Refused, noIDs, never},
		{c, "GlobalArgs", Refused, noArgs, never},
		{c, "Group", Works, "", nil},
		{c, "GroupAdd", Differs, "`keep-groups` is refused: the agent is not the user", groupAdd},
		{c, "HealthCmd", Works, "", healthCmd},
		{c, "HealthInterval", Differs, "`disable` is refused: without an interval nothing would make the checks", one("health-interval")},
		{c, "HealthLogDestination", Differs, healthy5, ignored(healthy5)},
		{c, "HealthMaxLogCount", Differs, healthy5, ignored(healthy5)},
		{c, "HealthMaxLogSize", Differs, healthy5, ignored(healthy5)},
		{c, "HealthOnFailure", Differs, "`none`, `kill`, `stop`; `restart` is refused: use `kill` with Restart= in [Service]", among("health-on-failure", "none", "kill", "stop")},
		{c, "HealthRetries", Works, "", one("health-retries")},
		{c, "HealthStartPeriod", Works, "", one("health-start-period")},
		{c, "HealthStartupCmd", Refused, noProbe, never},
		{c, "HealthStartupInterval", Refused, noProbe, never},
		{c, "HealthStartupRetries", Refused, noProbe, never},
		{c, "HealthStartupSuccess", Refused, noProbe, never},
		{c, "HealthStartupTimeout", Refused, noProbe, never},
		{c, "HealthTimeout", Works, "", one("health-timeout")},
		{c, "HostName", Works, "", one("hostname")},
		{c, "HttpProxy", Differs, "false by default, as no proxy of the node is the container's; true is refused: use Environment=", unlessFalse},
		{c, "IP", Works, "", one("ip")},
		{c, "IP6", Works, "", one("ip6")},
		{c, "Image", Works, "", nil},
		{c, "Label", Works, "", pairs("label")},
		{c, "LogDriver", Differs, "`journald`, `passthrough`, `json-file`, `k8s-file`: the output is in the journal and in the agent's log; `none`: in neither", logDriver},
		{c, "LogOpt", Differs, "`max-size` and `max-file` of the agent's log; others are refused", each("log-opt")},
		{c, "Mask", Refused, "further paths cannot be masked", never},
		{c, "Memory", Works, "", one("memory")},
		{c, "Mount", Differs, "types bind, volume, tmpfs, image and artifact", mountKey},
		{c, "Network", Differs, "`ns:`, `slirp4netns` and `pasta` are refused", networkKey},
		{c, "NetworkAlias", Works, "", each("network-alias")},
		{c, "NoNewPrivileges", Differs, "true by default, as in longshore run; write false where the program needs su, sudo or the like", noNewPrivileges},
		{c, "Notify", Differs, "`healthy` and false; true is refused: the program is not in the unit's cgroup, so systemd would not accept its message", notifyKey},
		{c, "PidsLimit", Works, "", one("pids")},
		{c, "Pod", Refused, noPods, never},
		{c, "PodmanArgs", Refused, noArgs, never},
		{c, "PublishPort", Works, "", publish},
		{c, "Pull", Differs, "`always`, `missing`, `never`; `newer` is refused", among("pull", "always", "missing", "never")},
		{c, "ReadOnly", Works, "", on("--read-only")},
		{c, "ReadOnlyTmpfs", Differs, "/run, /tmp and /var/tmp begin empty", nil},
		{c, "ReloadCmd", Works, "", reloadCmd},
		{c, "ReloadSignal", Works, "", reloadSignal},
		{c, "Retry", Differs, noRetry, ignored(noRetry)},
		{c, "RetryDelay", Differs, noRetry, ignored(noRetry)},
		{c, "Rootfs", Refused, "a container's root comes from an image: import the directory", never},
		{c, "RunInit", Works, "", on("--init")},
		{c, "SeccompProfile", Works, "", prefixed("security-opt", "seccomp=")},
		{c, "Secret", Refused, "there is no store of secrets: use a file of the node with Volume=…:ro, or EnvironmentFile=", never},
		{c, "SecurityLabelDisable", Works, "", on("--security-opt", "label=disable")},
		{c, "SecurityLabelFileType", Works, "", prefixed("security-opt", "label=filetype:")},
		{c, "SecurityLabelLevel", Works, "", prefixed("security-opt", "label=level:")},
		{c, "SecurityLabelNested", Refused, noNested, unlessFalse},
		{c, "SecurityLabelType", Works, "", prefixed("security-opt", "label=type:")},
		{c, "ServiceName", Works, "", nil},
		{c, "ShmSize", Works, "", one("shm-size")},
		{c, "StartWithPod", Refused, noPods, never},
		{c, "StopSignal", Works, "", one("stop-signal")},
		{c, "StopTimeout", Works, "", stopTimeout},
		{c, "SubGIDMap", Refused, noIDs, never},
		{c, "SubUIDMap", Refused, noIDs, never},
		{c, "Sysctl", Works, "", words("sysctl")},
		{c, "Timezone", Differs, "the node's file of the zone is mounted at /etc/localtime", timezone},
		{c, "Tmpfs", Works, "", each("tmpfs")},
		{c, "UIDMap", Refused, noIDs, never},
		{c, "Ulimit", Differs, "`host` is refused", ulimit},
		{c, "Unmask", Differs, "only `ALL`", unmask},
		{c, "User", Works, "", nil},
		{c, "UserNS", Differs, "`host`, `auto` (or `private`); `keep-id`, `nomap` and options are refused", among("userns", "host", "auto", "private")},
		{c, "Volume", Differs, "options `ro`, `rw`, `nocopy`, `z`, `Z` and propagation; others, such as `U`, are refused", volumeKey},
		{c, "WorkingDir", Works, "", one("workdir")},
	}
}

// prefixed adds a flag with a prefix before the last value.
func prefixed(flag, prefix string) func(*build, []unitfile.Entry) error {
	return func(b *build, list []unitfile.Entry) error {
		b.flag(flag, prefix+last(list).Value)
		return nil
	}
}

func addDevice(b *build, list []unitfile.Entry) error {
	all, err := b.wordsOf(list)
	for _, w := range all {
		device, optional := strings.CutPrefix(w, "-")
		source, _, _ := strings.Cut(device, ":")
		if optional && !b.g.Exists(source) {
			continue
		}
		b.flag("device", device)
	}
	return err
}

// healthCmd adds the flag of the health check. As with podman, a line may begin with the word of a check's kind.
func healthCmd(b *build, list []unitfile.Entry) error {
	e := last(list)
	kind, rest, _ := strings.Cut(e.Value, " ")
	rest = strings.TrimSpace(rest)
	switch {
	case kind != "CMD" && kind != "CMD-SHELL":
	case rest == "":
		return e.Errorf("HealthCmd=%s has no command", kind)
	case kind == "CMD-SHELL":
		e.Value = rest
	default:
		words, err := json.Marshal(append([]string{kind}, strings.Fields(rest)...))
		if err != nil {
			return e.Errorf("HealthCmd=%s: %v", e.Value, err)
		}
		e.Value = string(words)
	}
	b.flag("health-cmd", e.Value)
	return nil
}

func ulimit(b *build, list []unitfile.Entry) error {
	for _, e := range list {
		if e.Value == "host" {
			return e.Errorf("Ulimit=host is refused: write the limits, such as nofile=1024:4096")
		}
		b.flag("ulimit", e.Value)
	}
	return nil
}

func cgroupsMode(b *build, list []unitfile.Entry) error {
	e := last(list)
	if e.Value == "disabled" {
		return e.Errorf("CgroupsMode=disabled is refused: each container has a cgroup")
	}
	b.note(e, "ignored: the container is in the agent's cgroup")
	return nil
}

func environmentFile(b *build, list []unitfile.Entry) error {
	for _, e := range list {
		if strings.HasPrefix(e.Value, "-") {
			return e.Errorf("EnvironmentFile=%s is refused: a file that may be missing is not supported", e.Value)
		}
		b.flag("env-file", b.absolute(e.Value))
	}
	return nil
}

// absolute resolves a path from the directory of the Quadlet file. Paths that begin with a specifier are systemd's to resolve.
func (b *build) absolute(name string) string {
	if path.IsAbs(name) || strings.HasPrefix(name, "%") {
		return name
	}
	return path.Join(path.Dir(b.s.path), name)
}

func groupAdd(b *build, list []unitfile.Entry) error {
	for _, e := range list {
		if e.Value == "keep-groups" {
			return e.Errorf("GroupAdd=keep-groups is refused: the agent is not the user")
		}
		b.flag("group-add", e.Value)
	}
	return nil
}

func logDriver(b *build, list []unitfile.Entry) error {
	switch e := last(list); e.Value {
	case "journald", "passthrough", "json-file", "k8s-file":
		return nil
	case "none":
		b.flag("log-driver", "none")
		b.service = append(b.service, "StandardOutput=null", "StandardError=null")
		return nil
	default:
		return e.Errorf("LogDriver=%s is refused: it is none of journald, passthrough, json-file, k8s-file, none", e.Value)
	}
}

func noNewPrivileges(b *build, list []unitfile.Entry) error {
	is, err := truth(last(list))
	if err == nil && !is {
		b.args = append(b.args, "--new-privileges")
	}
	return err
}

func notifyKey(_ *build, list []unitfile.Entry) error {
	e := last(list)
	if e.Value == "healthy" {
		return nil
	}
	if is, err := truth(e); err != nil || !is {
		return err
	}
	return e.Errorf("Notify=true is refused: the program is not in the unit's cgroup, so systemd would not accept its message; use Notify=healthy with HealthCmd=")
}

func publish(b *build, list []unitfile.Entry) error {
	for _, e := range list {
		if _, err := typed.Ports(e.Value); err != nil && !expands(e.Value) {
			return e.Errorf("PublishPort=%s is not [[ip:][host]:]container[/tcp|udp|sctp]", e.Value)
		}
		b.flag("publish", e.Value)
	}
	return nil
}

// expands reports whether systemd changes a value when it starts the service.
func expands(value string) bool { return strings.ContainsAny(value, "%$") }

// command returns a command line of longshore. Systemd expands specifiers and variables in the words, as in those that Podman's
// generator writes.
func (b *build) command(words ...string) string {
	return unitfile.Line(append([]string{unitfile.Literal(b.g.Program)}, words...))
}

func reloadCmd(b *build, list []unitfile.Entry) error {
	if _, both := b.s.file.Last("Container", "ReloadSignal"); both {
		return last(list).Errorf("ReloadCmd= and ReloadSignal= exclude each other")
	}
	e := last(b.s.file.All("Container", "ReloadCmd")) // with its quotes
	w, err := unitfile.Split(e.Value)
	if err != nil {
		return e.Errorf("ReloadCmd: %v", err)
	}
	b.service = append(b.service, "ExecReload="+b.command(append([]string{"exec", b.s.resource}, w...)...))
	return nil
}

func reloadSignal(b *build, list []unitfile.Entry) error {
	b.service = append(b.service, "ExecReload="+b.command("kill", "--signal="+last(list).Value, b.s.resource))
	return nil
}

func stopTimeout(b *build, list []unitfile.Entry) error {
	e := last(list)
	b.flag("stop-timeout", e.Value)
	if expands(e.Value) {
		return nil
	}
	grace, err := runflags.Grace("StopTimeout=", e.Value)
	if err != nil {
		return e.Errorf("%v", err)
	}
	// systemd must not kill the command before the container's time is over.
	b.service = append(b.service, fmt.Sprintf("TimeoutStopSec=%d", int64(math.Ceil(grace.AsDuration().Seconds()))+30))
	return nil
}

func timezone(b *build, list []unitfile.Entry) error {
	e := last(list)
	file := "/etc/localtime"
	if e.Value != "local" {
		if strings.Contains(e.Value, "..") || strings.ContainsAny(e.Value, ":,") || strings.HasPrefix(e.Value, "/") {
			return e.Errorf("Timezone=%s is not the name of a time zone", e.Value)
		}
		file = "/usr/share/zoneinfo/" + e.Value
	}
	b.flag("volume", file+":/etc/localtime:ro")
	return nil
}

func unmask(b *build, list []unitfile.Entry) error {
	if e := last(list); e.Value != "ALL" {
		return e.Errorf("Unmask=%s is refused: only ALL is supported", e.Value)
	}
	b.flag("security-opt", "systempaths=unconfined")
	return nil
}

// userFlag adds the flag of User= and Group=.
func (b *build) userFlag() {
	user, ok := b.s.file.Last("Container", "User")
	group, with := b.s.file.Last("Container", "Group")
	switch {
	case with && !ok:
		b.fail(group.Errorf("Group= needs User="))
	case with:
		b.flag("user", user.Value+":"+group.Value)
	case ok:
		b.flag("user", user.Value)
	}
}

// programArgs returns the arguments of the entry point and of the command.
func (b *build) programArgs() (flags, command []string) {
	if e, ok := b.s.file.Last("Container", "Entrypoint"); ok {
		list := []string{e.Value}
		if strings.HasPrefix(e.Value, "[") {
			if err := json.Unmarshal([]byte(e.Value), &list); err != nil || len(list) == 0 {
				b.fail(e.Errorf("Entrypoint=%s begins like a JSON list of words but is not one", e.Value))
				return nil, nil
			}
		}
		flags, command = []string{"--entrypoint=" + list[0]}, list[1:]
	}
	if list := b.s.file.All("Container", "Exec"); len(list) > 0 {
		w, err := unitfile.Split(last(list).Value)
		if err != nil {
			b.fail(last(list).Errorf("Exec: %v", err))
		}
		command = append(command, w...)
	}
	if len(command) > 0 && command[0] == "--" {
		command = append([]string{"--"}, command...)
	}
	return flags, command
}
