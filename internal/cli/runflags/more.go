package runflags

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/typed"
	"github.com/longshore/longshore/internal/core"
)

// otherNames maps flag names of other tools to ours.
func otherNames() map[string]string {
	return map[string]string{"net": "network", "pids-limit": "pids", "dns-opt": "dns-option", "timeout": "time"}
}

// moreFlags are the less common flags of run and create.
type moreFlags struct {
	envFile, labelFile, mount, tmpfs, security, gpus, sysctls, annotations, logOpts, searches, dnsOptions []string
	swap, reservation, shm, userns, logDriver, cidfile                                                    string
	health                                                                                                healthFlags
	io                                                                                                    ioFlags
	swappiness                                                                                            int64
}

func (f *moreFlags) define(fl *pflag.FlagSet, r *longshorev1.CreateRequest) {
	fl.StringArrayVar(&f.envFile, "env-file", nil, "file with environment variables, one NAME=value or NAME in a line")
	fl.StringArrayVar(&f.labelFile, "label-file", nil, "file with labels, one NAME=value in a line")
	fl.StringArrayVar(&f.mount, "mount", nil, "mount, type=bind|volume|tmpfs|image|artifact,source=…,target=…[,readonly]")
	fl.StringArrayVar(&f.tmpfs, "tmpfs", nil, "file system in memory, /path[:size=64m,mode=755,exec,…]")
	fl.StringArrayVar(&r.Ulimits, "ulimit", nil, "limit of each process, NAME=SOFT[:HARD], such as nofile=1024:4096")
	fl.StringArrayVar(&r.Devices, "device", nil, "device, /dev/x[:/dev/y][:rwm], or a name of the Container Device Interface, vendor.com/class=name")
	fl.StringArrayVar(&f.gpus, "gpus", nil, "GPUs by the Container Device Interface: all, or device=NAME[,NAME]; short for --device nvidia.com/gpu=…")
	fl.StringVar(&f.shm, "shm-size", "", "size of /dev/shm, such as 256m (default: 64m)")
	fl.StringArrayVar(&f.sysctls, "sysctl", nil, "kernel parameter of the container's own namespaces, NAME=value")
	fl.StringArrayVar(&f.security, "security-opt", nil, "seccomp=FILE|unconfined, apparmor=PROFILE, label=LABEL, landlock=LEVEL[,LEVEL], no-new-privileges[=false], systempaths=unconfined")
	fl.StringArrayVar(&r.Groups, "group-add", nil, "further group, by name or number")
	fl.StringVar(&r.Pid, "pid", "", "pid namespace: host, container:NAME, or empty for its own")
	fl.StringVar(&r.Ipc, "ipc", "", "ipc namespace: host, container:NAME, shareable, or empty for its own")
	fl.StringVar(&r.Uts, "uts", "", "uts namespace: host, or empty for its own")
	fl.StringVar(&f.userns, "userns", "", "user namespace: host, or private (auto) for ids of its own; by default as engine.userns of the node")
	fl.StringArrayVar(&r.VolumesFrom, "volumes-from", nil, "also mount the volumes and binds of another container, NAME[:ro]")
	fl.StringVar(&r.CpusetCpus, "cpuset-cpus", "", "CPUs to run on, such as 0-2,4")
	fl.StringVar(&r.CpusetMems, "cpuset-mems", "", "memory nodes to use")
	fl.Uint64VarP(&r.CpuShares, "cpu-shares", "c", 0, "share of the CPUs when they are busy; 1024 is the default")
	fl.StringVar(&f.swap, "memory-swap", "", "limit of memory and swap together, such as 1g; -1 for no limit of swap")
	fl.StringVar(&f.reservation, "memory-reservation", "", "memory that is reclaimed last when memory is scarce")
	fl.Int32Var(&r.OomScoreAdj, "oom-score-adj", 0, "likelihood that the kernel kills it when memory runs out, -1000 to 1000")
	fl.StringVar(&r.Platform, "platform", "", "platform of the image, such as linux/arm64 (default: the node's)")
	fl.StringArrayVar(&r.Hosts, "add-host", nil, "line of /etc/hosts, NAME:ADDRESS; the address host-gateway is the node's")
	fl.StringArrayVar(&r.Links, "link", nil, "names of another container in /etc/hosts, NAME[:ALIAS]; it must run")
	fl.StringArrayVar(&f.searches, "dns-search", nil, "domain to search for names")
	fl.StringArrayVar(&f.dnsOptions, "dns-option", nil, "option of the resolver")
	fl.StringArrayVar(&f.annotations, "annotation", nil, "annotation of the OCI spec, NAME=value")
	fl.StringVar(&r.Ip, "ip", "", "address of the container, in the range of its network")
	fl.StringArrayVar(&r.NetworkAliases, "network-alias", nil, "further name on the network")
	fl.StringVar(&r.Mac, "mac-address", "", "hardware address of its interface")
	fl.BoolVarP(&r.PublishAll, "publish-all", "P", false, "forward a chosen host port to each port that the image or --expose names")
	fl.StringArrayVar(&r.Expose, "expose", nil, "port that -P forwards, PORT[-PORT][/protocol]")
	fl.StringArrayVar(&f.logOpts, "log-opt", nil, "max-size=16m or max-file=3 of the agent's log, or an option of the log service")
	fl.StringVar(&f.logDriver, "log-driver", "", "json-file or local (the agent's log), none to drop the output, or journald, syslog or fluentd, which get the lines of the log, too")
	f.health.define(fl)
	f.io.define(fl, r)
	fl.Int64Var(&f.swappiness, "memory-swappiness", -1, "inclination of the kernel to swap, 0 to 100, with cgroup v1; -1 for the node's")
	fl.BoolVar(&r.OomKillDisable, "oom-kill-disable", false, "let the programs wait when memory runs out instead of killing one, with cgroup v1")
	fl.StringVar(&r.Cgroupns, "cgroupns", "", "cgroup namespace: host, or private (default private)")
	fl.StringVar(&r.Systemd, "systemd", systemdDefault, "prepare the container for systemd: true (if its command is systemd or an init), false, or always")
	fl.StringVar(&r.Domainname, "domainname", "", "NIS domain name")
	fl.StringVar(&r.Ip6, "ip6", "", "IPv6 address of the container, in the range of its network")
	fl.StringVar(&f.cidfile, "cidfile", "", "write the container's ID to this new file")
}

// systemdDefault is the value of --systemd, and of a request without one.
const systemdDefault = "true"

// fill sets the request's fields from the flags.
func (f *moreFlags) fill(r *longshorev1.CreateRequest) error {
	switch mode, _, _ := strings.Cut(f.userns, ":"); {
	case f.userns == "":
	case f.userns == "host":
		r.Userns = "host"
	case f.userns == "private" || f.userns == "auto":
		r.Userns = "private"
	case mode == "keep-id" || mode == "nomap":
		return fmt.Errorf("--userns %q maps the user of a rootless podman, and the agent is root: use private, and --user to choose the program's user", f.userns)
	default:
		return fmt.Errorf("--userns %q is none of host, private, auto: namespaces cannot be shared, and their ids cannot be chosen", f.userns)
	}
	for _, m := range f.mount {
		if err := addMount(r, m); err != nil {
			return fmt.Errorf("--mount %q: %w", m, err)
		}
	}
	for _, t := range f.tmpfs {
		target, options, _ := strings.Cut(t, ":")
		tmpfs := &longshorev1.Tmpfs{Target: target}
		if options != "" {
			tmpfs.Options = strings.Split(options, ",")
		}
		r.Tmpfs = append(r.Tmpfs, tmpfs)
	}
	for _, s := range f.security {
		if err := AddSecurity(r, s); err != nil {
			return fmt.Errorf("--security-opt %q: %w", s, err)
		}
	}
	for _, g := range f.gpus {
		names, err := gpuNames(g)
		if err != nil {
			return fmt.Errorf("--gpus %q: %w", g, err)
		}
		r.Devices = append(r.Devices, names...)
	}
	if len(f.searches)+len(f.dnsOptions) > 0 {
		if r.Dns == nil {
			r.Dns = &longshorev1.Dns{}
		}
		r.Dns.Searches, r.Dns.Options = f.searches, f.dnsOptions
	}
	var err error
	if r.Sysctls, err = typed.Labels(f.sysctls); err != nil {
		return fmt.Errorf("--sysctl: %w", err)
	}
	annotations, err := typed.Labels(f.annotations)
	if err != nil {
		return fmt.Errorf("--annotation: %w", err)
	}
	for k, v := range annotations { // beside those of --security-opt
		addAnnotation(r, k, v)
	}
	return errors.Join(f.sizes(r), f.log(r), f.health.fill(r), f.io.fill(r))
}

func (f *moreFlags) sizes(r *longshorev1.CreateRequest) error {
	var swap uint64
	for _, n := range []struct {
		flag, text string
		to         *uint64
	}{{"shm-size", f.shm, &r.ShmBytes}, {"memory-reservation", f.reservation, &r.MemoryReservationBytes}, {"memory-swap", f.swap, &swap}} {
		if n.text == "" || n.flag == "memory-swap" && n.text == "-1" {
			continue
		}
		var err error
		if *n.to, err = typed.Bytes(n.text); err != nil {
			return fmt.Errorf("--%s: %w", n.flag, err)
		}
	}
	switch {
	case f.swappiness == -1:
	case f.swappiness < 0 || f.swappiness > 100:
		return fmt.Errorf("--memory-swappiness %d is not between 0 and 100, and not -1", f.swappiness)
	default:
		n := uint64(f.swappiness)
		r.MemorySwappiness = &n
	}
	if r.MemorySwapBytes = int64(min(swap, 1<<62)); f.swap == "-1" {
		r.MemorySwapBytes = -1
	}
	return nil
}

func (f *moreFlags) log(r *longshorev1.CreateRequest) error {
	switch f.logDriver {
	case "", "json-file", "local":
		r.LogDriver = f.logDriver
	case "none":
		r.NoLog = true
	default:
		r.LogDriver, r.LogOptions = f.logDriver, map[string]string{} // the agent knows the services
	}
	for _, o := range f.logOpts {
		name, value, _ := strings.Cut(o, "=")
		var err error
		switch name {
		case "max-size":
			var n uint64
			n, err = typed.Bytes(value)
			r.LogBytes = int64(min(n, 1<<62))
		case "max-file":
			var n int64
			n, err = strconv.ParseInt(value, 10, 32)
			r.LogFiles = int32(n)
		default:
			if r.LogOptions == nil {
				err = errors.New("without a log service as --log-driver, only max-size and max-file are supported")
				break
			}
			r.LogOptions[name] = value
		}
		if err != nil {
			return fmt.Errorf("--log-opt %q: %w", o, err)
		}
	}
	return nil
}

// IDFile is the file of --cidfile. It does nothing without the flag.
type IDFile struct {
	file    *os.File
	written bool
}

// OpenIDFile makes the file of --cidfile, before the container is created: one that cannot be written must leave no container.
func (f *Create) OpenIDFile() (*IDFile, error) {
	if err := f.CheckIDFile(); err != nil || f.more.cidfile == "" {
		return &IDFile{}, err
	}
	file, err := os.OpenFile(f.more.cidfile, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, fmt.Errorf("--cidfile: %w", err)
	}
	return &IDFile{file: file}, nil
}

// Write writes the container's ID.
func (f *IDFile) Write(id string) error {
	if f.file == nil {
		return nil
	}
	_, err := f.file.WriteString(id)
	f.written = err == nil
	return err
}

// Close removes the file if there is no container.
func (f *IDFile) Close() error {
	if f.file == nil {
		return nil
	}
	err := f.file.Close()
	if !f.written {
		err = errors.Join(err, os.Remove(f.file.Name()))
	}
	return err
}

// CheckIDFile refuses an existing file of --cidfile, before the container is created.
func (f *Create) CheckIDFile() error {
	if f.more.cidfile == "" {
		return nil
	}
	if _, err := os.Lstat(f.more.cidfile); err == nil {
		return fmt.Errorf("--cidfile %s: the file exists and may have another container's ID: remove it or name another file", f.more.cidfile)
	}
	return nil
}

// AddSecurity parses one --security-opt, NAME=VALUE or NAME:VALUE.
func AddSecurity(r *longshorev1.CreateRequest, s string) error {
	name, value, ok := strings.Cut(s, "=")
	if !ok {
		name, value, ok = strings.Cut(s, ":")
	}
	switch {
	case name == "no-new-privileges" && (!ok || value == "true"):
		r.NewPrivileges = false
	case name == "no-new-privileges" && value == "false":
		r.NewPrivileges = true
	case name == "seccomp" && value == "unconfined":
		r.SeccompUnconfined = true
	case name == "seccomp" && ok:
		profile, err := os.ReadFile(value)
		if err != nil {
			return err
		}
		r.Seccomp = profile
	case name == "apparmor" && ok:
		r.Apparmor = value
	case name == "landlock" && ok:
		addAnnotation(r, core.LandlockAnnotation, value)
	case name == "systempaths" && value == "unconfined":
		r.Unmasked = true
	case name == "label" && ok:
		r.Selinux = append(r.Selinux, value)
	default:
		return errors.New("only seccomp=FILE, seccomp=unconfined, apparmor=PROFILE, label=LABEL, landlock=LEVELS, no-new-privileges and systempaths=unconfined are supported")
	}
	return nil
}

func addAnnotation(r *longshorev1.CreateRequest, key, value string) {
	if r.Annotations == nil {
		r.Annotations = map[string]string{}
	}
	r.Annotations[key] = value
}

// gpuNames returns the names of the Container Device Interface for the value of --gpus.
func gpuNames(s string) ([]string, error) {
	s = strings.Trim(s, `"'`)
	if s == "all" {
		return []string{"nvidia.com/gpu=all"}, nil
	}
	list, ok := strings.CutPrefix(s, "device=")
	if !ok {
		return nil, errors.New("only all and device=NAME[,NAME] are supported: the Container Device Interface has no count of devices")
	}
	var names []string
	for n := range strings.SplitSeq(list, ",") {
		names = append(names, "nvidia.com/gpu="+n)
	}
	return names, nil
}
