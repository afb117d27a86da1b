package corpus

import (
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
)

// Given describes the container of a task.
type Given struct {
	Refused bool // the task fails, and all other fields are empty

	Args        []string
	WorkDir     string
	User        uint32
	Hostname    string // "id" for the container's short id, "node" for the node's
	TTY         bool
	Stdin, Init bool
	Labels      map[string]string

	Network  string // host, none, bridge for one of the driver's, or group
	Ports    []string
	Servers  []string
	Searches []string
	Options  []string
	Hosts    []string

	Mounts     []Mount // sorted, without those that every task has
	Devices    []string
	Privileged bool
	Added      []string // capabilities beside the default ones
	NoCaps     bool
	Groups     []uint32
	Ulimits    []string
	Sysctls    map[string]string
	ReadOnly   bool
	NoNew      bool
	HostIPC    bool
	HostPID    bool
	OwnCgroups bool
	ShmBytes   string
	Pids       int64
	Memory     int64
	Period     uint64
	Score      int
}

// Mount is a mount of a task. The source of a volume without a name is empty.
type Mount struct {
	Target, Type, Source string
	ReadOnly             bool
	Propagation          string
}

// defaults are the capabilities of docker's driver.
var defaults = strings.Fields("CAP_AUDIT_WRITE CAP_CHOWN CAP_DAC_OVERRIDE CAP_FOWNER CAP_FSETID CAP_KILL CAP_MKNOD CAP_NET_BIND_SERVICE CAP_SETFCAP CAP_SETGID CAP_SETPCAP CAP_SETUID CAP_SYS_CHROOT CAP_NET_RAW")

// MemoryMB is the memory limit of each task.
const MemoryMB = 32

// UserID is the user of tasks that name one.
const UserID = 33

// ByDocker returns the container that docker's driver makes for a shape.
func (s Shape) ByDocker(p Place) Given {
	k := s.Keys
	if s.refused() {
		return Given{Refused: true}
	}
	g := Given{WorkDir: "/", Network: "bridge", Hostname: "id", ShmBytes: "65536k", Memory: MemoryMB << 20}
	// Without a command or arguments those of the image are used, if its entry point is too.
	entry, command := Entrypoint(), Command()
	if k["entrypoint"] == "list" {
		entry, command = []string{"/bin/" + stay}, nil
	}
	if k["command"] != "" || k["args"] == "some" {
		command = nil
	}
	if c := k["command"]; c != "" {
		command = append(command, map[string]string{"name": stay, "path": "/bin/" + stay}[c])
	}
	if k["args"] == "some" {
		command = append(command, "-x")
	}
	g.Args = slices.Concat(entry, command)
	s.network(&g)
	if k["work_dir"] != "" {
		g.WorkDir = "/tmp"
	}
	if s.User {
		g.User = UserID
	}
	for _, v := range volumes(k["volumes"], p) {
		if v.Target != "/v0" || k["volumes"] != "" {
			if k["volume_driver"] != "" {
				v.Type, v.Source = "volume", "configs"
			}
			g.Mounts = append(g.Mounts, v.Mount)
		}
	}
	for _, m := range mounts(k["mount"], p) {
		if k["mount"] != "" {
			g.Mounts = append(g.Mounts, m.Mount)
		}
	}
	for i, m := range g.Mounts {
		if m.Type == "bind" && m.Propagation == "" {
			g.Mounts[i].Propagation = "rprivate"
		}
	}
	slices.SortFunc(g.Mounts, byTarget)
	s.rest(&g)
	return g
}

// refused reports whether docker's driver, or a dockerd without further drivers and runtimes, refuses a shape.
func (s Shape) refused() bool {
	k := s.Keys
	switch {
	case k["port_map"] != "" && s.Group != "task": // it maps no ports of groups
		return true
	case k["runtime"] != "", k["isolation"] != "", k["network_aliases"] != "", k["volume_driver"] == "pxd", k["load"] != "", k["tmpfs"] != "", k["ipv4_address"] != "", k["volumes"] == "anonymous":
		return true
	}
	return false
}

// network sets the fields of the network. Only a task on the driver's own bridge publishes ports.
func (s Shape) network(g *Given) {
	k := s.Keys
	switch mode := k["network_mode"]; {
	case mode == "named":
		g.Network = "weave"
	case mode != "":
		g.Network = mode
	case s.Group == "bridge" || s.Group == "cni":
		g.Network = "group"
	}
	if g.Network == "host" {
		g.Hostname = "node"
	}
	if g.Network == "bridge" && (k["ports"] == "some" || s.Group == "task") {
		to := "="
		if s.Group != "task" || k["port_map"] != "" {
			to = fmt.Sprint(Port)
		}
		g.Ports = []string{to + "/tcp", to + "/udp"}
	}
	if k["hostname"] != "" {
		g.Hostname = "box"
	}
	if k["uts_mode"] == "host" {
		g.Hostname = "node"
	}
	if k["dns_servers"] != "" {
		g.Servers = []string{"192.0.2.53"}
	}
	if k["dns_search_domains"] != "" {
		g.Searches = []string{"corp.example"}
	}
	if k["dns_options"] != "" {
		g.Options = []string{"ndots:2"}
	}
	switch k["extra_hosts"] {
	case "address":
		g.Hosts = []string{"192.0.2.7 db"}
	case "gateway":
		g.Hosts = []string{"gateway node"}
	}
}

// rest sets the fields that depend on a single key.
func (s Shape) rest(g *Given) {
	k := s.Keys
	is := func(key string) bool { return k[key] == "true" }
	g.TTY, g.Stdin, g.Init, g.ReadOnly, g.Privileged = is("tty"), is("interactive"), is("init"), is("readonly_rootfs"), is("privileged")
	g.HostIPC, g.HostPID, g.OwnCgroups = k["ipc_mode"] == "host", k["pid_mode"] == "host", k["cgroupns"] == "private"
	g.NoNew, g.NoCaps = k["security_opt"] == "no-new-privileges", k["cap_drop"] == "ALL"
	if k["labels"] != "" {
		g.Labels = map[string]string{"team": "blue"}
	}
	if k["devices"] != "" {
		g.Devices = []string{"/dev/void"}
	}
	if k["cap_add"] != "" && !g.Privileged {
		for c := range strings.SplitSeq(strings.ToUpper(k["cap_add"]), "|") {
			if c = "CAP_" + c; !slices.Contains(defaults, c) {
				g.Added = append(g.Added, c)
			}
		}
	}
	if k["group_add"] != "" {
		g.Groups = []uint32{44}
	}
	if k["ulimit"] != "" {
		for name := range strings.SplitSeq(k["ulimit"], "+") {
			g.Ulimits = append(g.Ulimits, "RLIMIT_"+strings.ToUpper(name)+" "+strings.Replace(limit(name), ":", " ", 1))
		}
	}
	if k["sysctl"] != "" {
		g.Sysctls = map[string]string{"net.core.somaxconn": "128"}
	}
	if k["shm_size"] != "" {
		g.ShmBytes = "1024k"
	}
	if k["pids_limit"] != "" {
		g.Pids = 50
	}
	if k["memory_hard_limit"] != "" {
		g.Memory = 128 << 20
	}
	if is("cpu_hard_limit") {
		g.Period = 100000
		if k["cpu_cfs_period"] != "" {
			g.Period = 50000
		}
	}
	if k["oom_score_adj"] != "" {
		g.Score = 100
	}
}

func byTarget(a, b Mount) int { return strings.Compare(a.Target, b.Target) }

// Of describes a container by its sandbox, its record and its spec.
func Of(sb core.Sandbox, c core.Container, s *specs.Spec) Given {
	g := Given{
		Args: s.Process.Args, WorkDir: s.Process.Cwd, User: s.Process.User.UID, TTY: s.Process.Terminal, Stdin: c.Config.IO.Stdin != "", Init: c.Config.Init,
		Servers: sb.Config.Network.DNS.Servers, Searches: sb.Config.Network.DNS.Searches, Options: sb.Config.Network.DNS.Options,
		ReadOnly: c.Config.Root.ReadOnly, NoNew: s.Process.NoNewPrivileges, HostIPC: sb.Config.Namespaces.IPC.Mode == core.Host,
		HostPID: sb.Config.Namespaces.PID.Mode == core.Host, OwnCgroups: sb.Config.Namespaces.Cgroup.Mode == core.PerContainer,
	}
	if g.Init { // it runs below our init
		g.Args = g.Args[min(2, len(g.Args)):]
	}
	switch {
	case sb.Config.Namespaces.UTS.Mode == core.Host:
		g.Hostname = "node"
	case sb.Config.Hostname == c.ID.Short():
		g.Hostname = "id"
	default:
		g.Hostname = sb.Config.Hostname
	}
	if team := c.Labels["team"]; team != "" {
		g.Labels = map[string]string{"team": team}
	}
	switch net := sb.Config.Namespaces.Net.Mode; {
	case net == core.Host:
		g.Network = "host"
	case net == core.Adopted:
		g.Network = "group"
	case sb.Config.Network.Name == core.NetworkNone:
		g.Network = "none"
	default:
		g.Network = "bridge"
	}
	for _, p := range sb.Config.Network.Ports {
		to := fmt.Sprint(p.Container)
		if p.Container == p.Host {
			to = "="
		}
		g.Ports = append(g.Ports, to+"/"+p.Proto)
	}
	for addr, names := range sb.Config.Network.Hosts {
		for _, name := range names {
			if addr == core.HostGateway || addr == "127.0.0.1" {
				addr = "gateway"
			}
			if name != "own" && name != sb.Config.Hostname {
				g.Hosts = append(g.Hosts, addr+" "+name)
			}
		}
	}
	g.mounts(c, s)
	g.limits(s)
	return g
}

// mounts adds the job's mounts and devices, and the size of /dev/shm.
func (g *Given) mounts(c core.Container, s *specs.Spec) {
	for _, m := range s.Mounts {
		if m.Destination == "/dev/shm" {
			for _, o := range m.Options {
				if size, ok := strings.CutPrefix(o, "size="); ok {
					g.ShmBytes = strings.Replace(size, "1048576", "1024k", 1)
				}
			}
			if m.Type == "bind" { // the sandbox's, of 64 MiB
				g.ShmBytes = "65536k"
			}
		}
		if dir := path.Base(m.Destination); !strings.HasPrefix(dir, "v") && !strings.HasPrefix(dir, "m") || path.Dir(m.Destination) != "/" {
			continue
		}
		one := Mount{Target: m.Destination, Type: m.Type, Source: m.Source, ReadOnly: slices.Contains(m.Options, "ro")}
		for _, o := range m.Options {
			if strings.HasSuffix(o, "private") || strings.HasSuffix(o, "slave") || strings.HasSuffix(o, "shared") {
				one.Propagation = o
			}
		}
		for _, v := range c.Config.Volumes {
			if v.Target == one.Target {
				one = Mount{Target: v.Target, Type: "volume", Source: v.Name, ReadOnly: v.ReadOnly}
				if strings.HasPrefix(v.Name, anonymous) {
					one.Source = ""
				}
			}
		}
		if one.Type == "tmpfs" {
			one.Source, one.Propagation = "", ""
		}
		g.Mounts = append(g.Mounts, one)
	}
	slices.SortFunc(g.Mounts, byTarget)
	for _, d := range s.Linux.Devices {
		if d.Path == "/dev/void" {
			g.Devices = append(g.Devices, d.Path)
		}
	}
}

// anonymous begins the names of volumes that a job gives none.
const anonymous = "anonymous-"

func (g *Given) limits(s *specs.Spec) {
	caps := s.Process.Capabilities.Bounding
	g.Privileged, g.NoCaps = len(caps) > 30, len(caps) == 0
	for _, name := range caps {
		if !g.Privileged && !slices.Contains(defaults, name) {
			g.Added = append(g.Added, name)
		}
	}
	slices.Sort(g.Added)
	for _, gid := range s.Process.User.AdditionalGids {
		if gid != s.Process.User.GID {
			g.Groups = append(g.Groups, gid)
		}
	}
	for _, l := range s.Process.Rlimits {
		if l.Type == "RLIMIT_CORE" && l.Soft == math.MaxUint64 { // the node's default
			continue
		}
		g.Ulimits = append(g.Ulimits, fmt.Sprintf("%s %d %d", l.Type, l.Soft, l.Hard))
	}
	if len(s.Linux.Sysctl) > 0 {
		g.Sysctls = maps.Clone(s.Linux.Sysctl)
	}
	r := s.Linux.Resources
	if r.Pids != nil && r.Pids.Limit != nil {
		g.Pids = *r.Pids.Limit
	}
	if r.Memory != nil && r.Memory.Limit != nil {
		g.Memory = *r.Memory.Limit
	}
	if r.CPU != nil && r.CPU.Period != nil {
		g.Period = *r.CPU.Period
	}
	if s.Process.OOMScoreAdj != nil {
		g.Score = *s.Process.OOMScoreAdj
	}
}
