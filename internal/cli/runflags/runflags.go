package runflags

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/durationpb"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/typed"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/restart"
)

// Create has the flags of run and create.
type Create struct {
	Request    *longshorev1.CreateRequest // complete after Fill
	Quiet      bool                       // shows no progress of a pull
	Creds      string                     // of the registry, user[:password]; "" uses the stored ones
	sleepAfter string
	disk       string
	egress     []string
	env        []string
	labels     []string
	volumes    []string
	ports      []string
	memory     string
	entrypoint string
	stopAfter  string
	dns        []string
	networks   []string
	more       moreFlags
}

// New returns flags without values.
func New() *Create { return &Create{Request: &longshorev1.CreateRequest{}} }

// Define defines the flags.
func (f *Create) Define(fl *pflag.FlagSet) {
	fl.SetInterspersed(false)                       // arguments after the image belong to the program
	fl.Bool("help", false, "help for this command") // without its short form: -h is --hostname
	fl.SetNormalizeFunc(NormalNames)
	fl.StringVar(&f.Request.Name, "name", "", "name of the container (default: generated)")
	fl.BoolVarP(&f.Request.Stdin, "interactive", "i", false, "keep standard input open")
	fl.BoolVarP(&f.Request.Tty, "tty", "t", false, "allocate a terminal")
	fl.BoolVar(&f.Request.AutoRemove, "rm", false, "remove the container when it has ended")
	fl.StringArrayVarP(&f.env, "env", "e", nil, "environment variable, NAME=value, or NAME to copy it from this environment")
	fl.StringArrayVarP(&f.volumes, "volume", "v", nil, "mount, [/host/path:|./path:|volume[/path in it]:]/path[:ro|rw|nocopy|rshared|z|…]; without a source: anonymous volume")
	fl.StringArrayVarP(&f.ports, "publish", "p", nil, "forward a port or a range, [[ip:][host]:]container[/tcp|udp|sctp]; the agent chooses a host port of a range, or one that is not named")
	fl.StringVarP(&f.memory, "memory", "m", "", "memory limit, such as 64m or 2g")
	fl.Float64Var(&f.Request.Cpus, "cpus", 0, "CPU limit, such as 1.5")
	fl.Int64Var(&f.Request.CpuQuota, "cpu-quota", 0, "CPU time in each period, in microseconds, in place of --cpus; -1 for no limit")
	fl.Uint64Var(&f.Request.CpuPeriod, "cpu-period", 0, "period of --cpu-quota in microseconds (default 100000)")
	fl.Int64Var(&f.Request.Pids, "pids", 0, "limit of processes and threads; -1 for none")
	fl.StringVarP(&f.Request.User, "user", "u", "", "user[:group] by name or number")
	fl.StringVarP(&f.Request.Workdir, "workdir", "w", "", "working directory")
	fl.StringVar(&f.entrypoint, "entrypoint", "", "program in place of the image's entry point; empty uses none")
	fl.BoolVar(&f.Request.Privileged, "privileged", false, "all capabilities and devices, no confinement")
	fl.StringArrayVar(&f.Request.CapAdd, "cap-add", nil, "capability to add, or ALL")
	fl.StringArrayVar(&f.Request.CapDrop, "cap-drop", nil, "capability to drop, or ALL")
	fl.BoolVar(&f.Request.NewPrivileges, "new-privileges", false, "allow programs to gain privileges, such as by set-user-ID (su, sudo)")
	fl.BoolVar(&f.Request.ReadOnly, "read-only", false, "root filesystem read-only")
	fl.BoolVar(&f.Request.Init, "init", false, "run a tiny init as pid 1, which reaps processes and forwards signals")
	fl.StringVarP(&f.Request.Hostname, "hostname", "h", "", "host name (default: the container's name)")
	fl.StringArrayVarP(&f.labels, "label", "l", nil, "label, NAME=value")
	fl.StringArrayVar(&f.egress, "egress", nil, "permit connections to this name, address or range only, such as api.example.com:443 (repeatable)")
	fl.StringVar(&f.disk, "disk", "", "limit of what it may write into its root, such as 10g")
	fl.StringVar(&f.sleepAfter, "sleep-after", "", "put it to sleep when it has been idle for this time, such as 10m")
	fl.StringArrayVar(&f.networks, "network", nil, "network of network create, host, none, container:NAME, or default (the agent's); repeatable; name=NET,alias=…,ip=…,ip6=…,mac-address=…")
	fl.StringArrayVar(&f.dns, "dns", nil, "name server to use instead of the host's")
	fl.StringVar(&f.Request.Runtime, "runtime", "", "name of a configured runtime")
	fl.StringVar(&f.Request.Pull, "pull", "missing", "when to pull the image: missing, always, never")
	fl.BoolVarP(&f.Quiet, "quiet", "q", false, "do not show the progress of a pull")
	fl.StringVar(&f.Creds, "creds", "", "registry user[:password]; without a password $LONGSHORE_REGISTRY_PASSWORD is used")
	fl.StringVar(&f.Request.StopSignal, "stop-signal", "", "signal that stops the program (default: the image's, or TERM)")
	fl.StringVar(&f.stopAfter, "stop-timeout", "", "time from the stop signal to KILL, seconds or 1m30s (default 10s)")
	f.more.define(fl, f.Request)
	fl.StringVar(&f.Request.Restart, "restart", "no", RestartUsage)
}

// RestartUsage describes the flag --restart.
const RestartUsage = "when to start it again after its end: no, on-failure[:MAX], always, unless-stopped"

// Fill makes the request from flags and arguments.
func (f *Create) Fill(fl *pflag.FlagSet, args []string, getenv func(string) string) (err error) {
	r := f.Request
	switch policy, err := restart.Parse(r.GetRestart()); {
	case err != nil:
		return fmt.Errorf("--restart: %w", err)
	case policy.Name == core.RestartNever:
		r.Restart = ""
	case r.GetAutoRemove():
		return errors.New("--restart and --rm: a container that is removed after its end cannot be started again")
	}
	r.Image, r.Command = args[0], args[1:]
	if len(r.GetCommand()) > 0 && r.GetCommand()[0] == "--" { // the end of the options
		r.Command = r.GetCommand()[1:]
	}
	r.ClearEntrypoint = fl.Changed("entrypoint") && f.entrypoint == ""
	r.Entrypoint = f.entrypoint
	if r.StopGrace, err = Grace("--stop-timeout", f.stopAfter); err != nil {
		return err
	}
	if r.GetPids() == -1 {
		r.Pids = 0
	}
	fromFiles, err := typed.Files("--env-file", f.more.envFile)
	if err != nil {
		return err
	}
	if r.Env, err = typed.Env(append(fromFiles, f.env...), getenv); err != nil {
		return err
	}
	if fromFiles, err = typed.Files("--label-file", f.more.labelFile); err != nil {
		return err
	}
	if len(f.egress) > 0 {
		f.labels = append(f.labels, core.EgressLabel+"="+strings.Join(f.egress, " "))
	}
	if f.sleepAfter != "" {
		f.labels = append(f.labels, core.SleepAfterLabel+"="+f.sleepAfter)
	}
	if r.Labels, err = typed.Labels(append(fromFiles, f.labels...)); err != nil {
		return err
	}
	if f.disk != "" {
		n, err := core.DiskLimit(f.disk)
		if err != nil {
			return fmt.Errorf("--disk: %w", err)
		}
		r.DiskBytes = uint64(n)
	}
	if f.memory != "" {
		if r.MemoryBytes, err = typed.Bytes(f.memory); err != nil {
			return fmt.Errorf("--memory: %w", err)
		}
	}
	for _, v := range f.volumes {
		m, err := typed.Mount(v)
		if err != nil {
			return err
		}
		r.Mounts = append(r.Mounts, m)
	}
	for _, p := range f.ports {
		q, err := typed.Ports(p)
		if err != nil {
			return err
		}
		r.Ports = append(r.Ports, q...)
	}
	if len(f.dns) > 0 {
		r.Dns = &longshorev1.Dns{Servers: f.dns}
	}
	if err := addNetworks(r, f.networks); err != nil {
		return err
	}
	return f.more.fill(r)
}

// NormalNames translates flag names of other tools to ours.
func NormalNames(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	if known, ok := otherNames()[name]; ok {
		name = known
	}
	return pflag.NormalizedName(name)
}

// Grace parses a grace period, seconds or a duration, of a flag; "" is nil.
func Grace(flag, s string) (*durationpb.Duration, error) {
	if s == "" {
		return nil, nil //nolint:nilnil // not given
	}
	if n, err := strconv.ParseUint(s, 10, 31); err == nil {
		return durationpb.New(time.Duration(n) * time.Second), nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return nil, fmt.Errorf("%s %q is neither seconds nor a duration", flag, s)
	}
	return durationpb.New(d), nil
}
