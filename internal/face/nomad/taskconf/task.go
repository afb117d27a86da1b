package taskconf

import (
	"fmt"
	"net/netip"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/nomad/schema"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
)

// Task is a task's block config, checked as far as it can be without the node.
type Task struct {
	Image       string
	Load        string        // an archive that has Image, in place of a registry; relative to the task's directory local
	Pull        string        // missing, always or never
	PullTimeout time.Duration // 0: the plugin's
	Auth        Auth
	AuthSoft    bool   // credentials that are refused are left out, and it is tried again
	Rootfs      string // a directory in place of Image; relative to the task's
	Command     []string
	Entrypoint  []string // nil: the image's
	WorkDir     string
	Hostname    string
	Env, Labels map[string]string
	SleepAfter  time.Duration // 0: never
	Disk        int64         // limit of the root's own layer in bytes; 0: none
	Egress      []string      // the egress list; empty: the node's

	Network             string // "", host, none, bridge, task:NAME
	Ports               []string
	PortMap             map[string]int // ports in the task, by the labels of the ports that resources of the task ask for
	Addrs               []netip.Addr   // those that the task is to have on our bridge
	DNS                 DNS
	ExtraHosts          []string // NAME:ADDRESS
	HostIPC, HostPID    bool
	HostUTS, Privileged bool
	Users               bool // a user namespace of the task's own
	OwnCgroups          bool // a cgroup namespace of the task's own

	CapAdd, CapDrop []string
	Groups          []string
	Security        Security
	ReadOnly        bool
	Init, TTY       bool
	Stdin           bool
	Runtime         string
	StopSignal      string
	// Granted says that the program holds only the grants of the document Grants.
	Granted bool
	Grants  string

	Mounts  []Mount
	Devices []ocispec.Device
	CDI     []string
	Sysctls map[string]string
	Ulimits map[string]string

	ShmBytes     int64
	Pids         int64 // 0: the plugin's
	HardCPU      bool
	CPUPeriod    int64 // microseconds; 0 is the default
	Cpuset       string
	HardMemoryMB int64
	// ReservedMemory is in place of the job's memory where that is reclaimed down to; bytes, 0 is none.
	ReservedMemory int64
	Swap           int64   // memory and swap together, bytes; -1 is no limit, 0 the node's default
	Swappiness     *uint64 // nil is the node's default
	OOMScoreAdj    int

	NoLogs   bool
	LogFiles int   // 0: the default
	LogBytes int64 // of each; 0: the default
	// LogDriver also sends the output to a log service, which may be unknown; json-file is none, and "" the node's default.
	LogDriver  string
	LogOptions map[string]string

	// Warnings name the job's settings without effect.
	Warnings []string
}

// Auth has the credentials of a registry.
type Auth struct{ Username, Password string }

// DNS replaces Nomad's settings.
type DNS struct{ Servers, Searches, Options []string }

// Security is security_opt, taken apart.
type Security struct {
	Seccomp         string // "", unconfined, or a profile's path
	AppArmor        string
	Landlock        string   // levels, see ocispec.ParseLevels
	SELinux         []string // see ocispec.ParseSELinux
	NoNewPrivileges bool
	AllPaths        bool // nothing of /proc and /sys is masked or read-only
}

// Mount is one of mount, tmpfs and volumes.
type Mount struct {
	Type        string // bind, tmpfs, volume or image
	Source      string // of bind a path, relative to the task's directory or absolute; of volume or image a name
	Target      string
	ReadOnly    bool
	Propagation string
	Relabel     string // z or Z: SELinux labels of the files
	Size        int64  // of tmpfs, bytes; 0 is the kernel's own limit
	Mode        int64
	NoCopy      bool
	Labels      map[string]string // of volume, when this use makes it
	Options     map[string]string // of volume, when this use makes it; they may have a password
	SubPath     string            // of image and volume: the part to mount; "" is all
	Pull        string            // of image: missing, always or never
	Flags       []string          // of bind and tmpfs: further mount options
	Anonymous   bool              // of volume: it has no name, and is removed with the task
	Make        bool              // of bind: a source that is missing is made, as docker does for volumes
}

// Parse reads msgpack_driver_config. Rootfs is that of a task with neither image nor rootfs; "" is
// an error. InvalidArgument names the wrong key.
func Parse(data []byte, rootfs string) (Task, error) {
	v, err := schema.Decode(Fields(), data)
	if err != nil {
		return Task{}, err
	}
	t := Task{
		// Docker's driver lets an image's name begin as a URL.
		Image: strings.TrimPrefix(strings.TrimPrefix(v.String("image"), "https://"), "docker://"), Rootfs: v.String("rootfs"), Hostname: v.String("hostname"),
		Env: v.Map("env"), Labels: v.Map("labels"), Ports: v.Strings("ports"), Egress: v.Strings("egress"), ExtraHosts: v.Strings("extra_hosts"),
		DNS:        DNS{v.Strings("dns_servers"), v.Strings("dns_search_domains"), v.Strings("dns_options")},
		Privileged: v.Bool("privileged"), CapAdd: v.Strings("cap_add"), CapDrop: v.Strings("cap_drop"), Groups: v.Strings("group_add"),
		ReadOnly: v.Bool("readonly_rootfs"), Init: v.Bool("init"), TTY: v.Bool("tty"), Stdin: v.Bool("interactive"),
		Runtime: v.String("runtime"), StopSignal: v.String("stop_signal"), CDI: v.Strings("cdi_devices"), Sysctls: v.Map("sysctl"), Ulimits: v.Map("ulimit"),
		HardCPU: v.Bool("cpu_hard_limit"), Cpuset: v.String("cpuset_cpus"), AuthSoft: v.Bool("auth_soft_fail"),
		Auth: Auth{v.Block("auth").String("username"), v.Block("auth").String("password")}, Load: v.String("load"),
	}
	if t.Image == "" && t.Rootfs == "" {
		t.Rootfs = rootfs
	}
	if after := v.String("sleep_after"); after != "" {
		if t.SleepAfter, err = core.SleepAfter(after); err != nil {
			return Task{}, invalid.Errorf("config.sleep_after: %v", err)
		}
	}
	for key, value := range v.Map("storage_opt") {
		if key != "size" {
			return Task{}, invalid.Errorf("config.storage_opt %s: size is the only option of this driver", key)
		}
		if t.Disk, err = core.DiskLimit(value); err != nil {
			return Task{}, invalid.Errorf("config.storage_opt size: %v", err)
		}
	}
	t.Granted, t.Grants = v.Has("grants"), v.Block("grants").String("document")
	for _, read := range []func(schema.Values) error{refused, t.image, t.command, t.namespaces, t.addresses, t.portMap, t.security, t.podman, t.mounts, t.limits, t.logs} {
		if err := read(v); err != nil {
			return Task{}, err
		}
	}
	return t, nil
}

func (t *Task) image(v schema.Values) error {
	switch {
	case t.Image == "" && t.Rootfs == "":
		return invalid.Errorf("image name required: config has neither image nor rootfs")
	case t.Image != "" && t.Rootfs != "":
		return invalid.Errorf("config has an image and a rootfs")
	}
	if t.Load != "" && (t.Image == "" || !filepath.IsLocal(t.Load)) {
		return invalid.Errorf("config.load %q: it is a file below the task's directory local, and image names the image in it", t.Load)
	}
	if t.Pull = policy(v, t.Image); v.String("image_pull_policy") == "" && v.Bool("force_pull") {
		t.Pull = "always"
	}
	if !slices.Contains([]string{"missing", "always", "never"}, t.Pull) {
		return invalid.Errorf("config.image_pull_policy %q is none of missing, always, never", t.Pull)
	}
	if text := v.String("image_pull_timeout"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 {
			return invalid.Errorf("config.image_pull_timeout %q is no duration such as 5m", text)
		}
		t.PullTimeout = d
	}
	if v.Has("healthchecks") && !v.Block("healthchecks").Bool("disable") {
		return invalid.Errorf("config.healthchecks can only be disabled: use a check block of a service, which Nomad runs")
	}
	return nil
}

// policy says when an image is pulled: missing, always or never.
func policy(v schema.Values, image string) string {
	if p := v.String("image_pull_policy"); p != "" {
		return p
	}
	if latest(image) {
		return "always"
	}
	return "missing"
}

// latest reports whether an image's name means the newest one.
func latest(image string) bool {
	name := image[strings.LastIndexByte(image, '/')+1:]
	return strings.HasSuffix(name, ":latest") || !strings.ContainsAny(name, ":@")
}

func (t *Task) command(v schema.Values) error {
	if c := v.String("command"); c != "" {
		t.Command = []string{c}
	}
	if args := v.Strings("args"); t.Command != nil || args != nil {
		t.Command = append(t.Command, args...)
	}
	if v.Has("entrypoint") { // a list, or one word as podman's jobs have it
		t.Entrypoint = append([]string{}, v.Strings("entrypoint")...)
	}
	var err error
	if t.WorkDir, err = either(v, "work_dir", "working_dir"); err != nil {
		return err
	}
	if t.WorkDir != "" && !path.IsAbs(t.WorkDir) {
		return invalid.Errorf("config.work_dir %q is no absolute path", t.WorkDir)
	}
	for k, x := range t.Env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.Contains(x, "\x00") {
			return invalid.Errorf("config.env: %q is no name of a variable", k)
		}
	}
	if t.StopSignal != "" {
		if _, err := ocispec.Signal(t.StopSignal); err != nil {
			return fmt.Errorf("config.stop_signal: %w", err)
		}
	}
	return nil
}

func (t *Task) namespaces(v schema.Values) error {
	t.Network = v.String("network_mode")
	// As docker has it, another task may be named as container:NAME-ALLOC too.
	if name, ok := strings.CutPrefix(t.Network, "container:"); ok {
		if len(name) > 37 && name[len(name)-37] == '-' {
			name = name[:len(name)-37]
		}
		t.Network = "task:" + name
	}
	name, isTask := strings.CutPrefix(t.Network, "task:")
	switch {
	case isTask && name != "":
	case t.Network == "default": // docker's name of its bridge
		t.Network = "bridge"
	case slices.Contains([]string{"", "host", "none", "bridge"}, t.Network):
	default:
		return invalid.Errorf("config.network_mode %q is none of host, none, bridge, task:NAME", t.Network)
	}
	for key, to := range map[string]*bool{"ipc_mode": &t.HostIPC, "pid_mode": &t.HostPID, "uts_mode": &t.HostUTS} {
		switch mode := v.String(key); mode {
		case "", "private", "none":
		case "shareable": // others join a task's network namespace only
			if key != "ipc_mode" {
				return invalid.Errorf("config.%s %q is not host", key, mode)
			}
		case "host":
			*to = true
		default:
			return invalid.Errorf("config.%s %q is not host", key, mode)
		}
	}
	switch m := v.String("cgroupns"); m {
	case "", "host":
	case "private":
		t.OwnCgroups = true
	default:
		return invalid.Errorf("config.cgroupns %q is neither host nor private", m)
	}
	return t.users(v)
}

// users refuses settings that conflict with a user namespace: those that remove other walls, and
// directories of others, because their files belong to nobody in it.
func (t *Task) users(v schema.Values) error {
	m, err := either(v, "userns_mode", "userns")
	if err != nil {
		return err
	}
	switch mode, _, _ := strings.Cut(m, ":"); {
	case m == "", m == "host":
		return nil
	case m == "auto", m == "private":
		t.Users = true
	case mode == "keep-id", mode == "nomap":
		return invalid.Errorf("config.userns_mode %q maps the user of a rootless podman, and the agent is root: use auto, and select the task's user by the job's user", m)
	default:
		return invalid.Errorf("config.userns_mode %q is neither host nor auto", m)
	}
	for what, asked := range map[string]bool{
		"privileged": t.Privileged, "ipc_mode = host": t.HostIPC, "pid_mode = host": t.HostPID, "uts_mode = host": t.HostUTS, "rootfs": t.Rootfs != "",
	} {
		if asked {
			return invalid.Errorf("config.userns_mode %s does not go with %s", m, what)
		}
	}
	return nil
}

func (t *Task) security(v schema.Values) error {
	for _, o := range v.Strings("security_opt") {
		name, value, _ := strings.Cut(o, "=")
		if value == "" {
			name, value, _ = strings.Cut(o, ":")
		}
		switch {
		case name == "seccomp" && (value == "unconfined" || path.IsAbs(value)):
			t.Security.Seccomp = value
		case name == "apparmor" && value != "":
			t.Security.AppArmor = value
		case name == "landlock":
			if _, err := ocispec.ParseLevels(value); err != nil {
				return invalid.Errorf("config.security_opt %q: %v", o, err)
			}
			t.Security.Landlock = value
		case name == "label":
			t.Security.SELinux = append(t.Security.SELinux, value)
			if _, err := ocispec.ParseSELinux(t.Security.SELinux); err != nil {
				return invalid.Errorf("config.security_opt %q: %v", o, err)
			}
		case name == "systempaths" && value == "unconfined":
			t.Security.AllPaths = true
		case name == "no-new-privileges" && slices.Contains([]string{"", "true"}, value):
			t.Security.NoNewPrivileges = true
		default:
			return invalid.Errorf("config.security_opt %q is none of seccomp=unconfined, seccomp=/PROFILE, apparmor=PROFILE, landlock=LEVELS, systempaths=unconfined, no-new-privileges", o)
		}
	}
	return nil
}

func (t *Task) limits(v schema.Values) error {
	for _, n := range []struct {
		key       string
		low, high int64
		to        *int64
	}{
		{"pids_limit", -1, 1 << 22, &t.Pids},
		{"cpu_cfs_period", 1000, 1000000, &t.CPUPeriod},
		{"memory_hard_limit", 0, 1 << 40, &t.HardMemoryMB},
	} {
		var err error
		if *n.to, err = v.Int(n.key, n.low, n.high); err != nil {
			return err
		}
	}
	if text := v.String("shm_size"); text != "" { // bytes, or a size with a unit as podman's jobs have it
		n, err := ocispec.Bytes(text)
		if err != nil || n < 0 {
			return invalid.Errorf("config.shm_size %q is no size such as 64m", text)
		}
		t.ShmBytes = n
	}
	score, err := v.Int("oom_score_adj", -1000, 1000)
	t.OOMScoreAdj = int(score)
	for name, value := range t.Ulimits {
		if _, uerr := ocispec.Rlimit(name + "=" + value); uerr != nil {
			return fmt.Errorf("config.ulimit: %w", uerr)
		}
	}
	return err
}
