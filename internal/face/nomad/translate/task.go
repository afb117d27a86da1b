// Package translate turns a task of Nomad's into the engine's nouns.
//
// It reads parts of the node that a task names (devices, profiles, Nomad's cgroups), and must not
// change anything. Start reading at Task.
package translate

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"

	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/beneath"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/nomad/plugin"
	"github.com/longshore/longshore/internal/face/nomad/taskconf"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/logs/driver"
	"github.com/longshore/longshore/internal/ocispec"
)

// Task is one StartTask with everything read.
type Task struct {
	Nomad   *nomaddriver.TaskConfig
	Conf    taskconf.Task
	Session plugin.Session
	// Join is the network namespace of another task, when Conf.Network names one.
	Join string
}

// Read reads the task's configuration. InvalidArgument for settings that the plugin's configuration
// forbids.
func Read(s plugin.Session, t *nomaddriver.TaskConfig) (Task, error) {
	a := Task{Nomad: t, Session: s}
	var err error
	rootfs := ""
	if s.Name == plugin.ExecName {
		rootfs = "." // the task's directory, which Nomad has filled
	}
	if a.Conf, err = taskconf.Parse(t.GetMsgpackDriverConfig(), rootfs); err != nil {
		return a, err
	}
	switch {
	case t.GetId() == "" || len(t.GetId()) > core.MaxKey || strings.ContainsRune(t.GetId(), 0):
		return a, invalid.Errorf("task id %q", t.GetId())
	case !path.IsAbs(t.GetAllocDir()) || t.GetName() == "" || strings.ContainsAny(t.GetName(), "/\x00") || t.GetName() == "..":
		return a, invalid.Errorf("task %q in %q", t.GetName(), t.GetAllocDir())
	}
	if len(a.Conf.PortMap) > 0 && len(a.taskNetworks()) == 0 {
		return a, invalid.Errorf("config.port_map needs a network block in the task's resources: use ports, and port { to } of the group's network")
	}
	if mode := a.network(); len(a.Conf.Ports) > 0 && (mode == netHost || mode == netNone) {
		a.Conf.Warnings = append(a.Conf.Warnings, "config.ports: a task with network "+mode+" publishes no ports; they are discarded, as docker does")
		a.Conf.Ports = nil
	}
	for _, line := range a.Conf.ExtraHosts {
		if strings.HasSuffix(line, ":"+core.HostGateway) && a.gateway() == "" {
			a.Conf.Warnings = append(a.Conf.Warnings, "config.extra_hosts: a task with network "+a.network()+" has no address for "+line)
		}
	}
	if name := a.Conf.LogDriver; !driver.Known(name) {
		a.Conf.Warnings = append(a.Conf.Warnings, "config.logging: the output goes to Nomad's log files and not to "+name+"; ship it from there")
		a.Conf.LogDriver, a.Conf.LogOptions = "", nil
	} else if err := driver.CheckAuthored(name, a.Conf.LogOptions); err != nil {
		return a, invalid.Errorf("config.logging: %w", err)
	}
	return a, a.permitted()
}

// permitted checks the task against the node operator's limits.
func (a Task) permitted() error {
	c, p := a.Conf, a.Session.Config
	for namespace, asked := range map[string]bool{"ipc": c.HostIPC, "pid": c.HostPID, "uts": c.HostUTS} {
		if asked && !p.Allows(namespace, "host") {
			return invalid.Errorf("%s_mode = host is not permitted on this node: allow_privileged or allowed_modes of the plugin", namespace)
		}
	}
	if !p.AllowPrivileged {
		for what, asked := range map[string]bool{
			"privileged": c.Privileged, "security_opt seccomp": c.Security.Seccomp != "", "security_opt apparmor": c.Security.AppArmor == "unconfined",
			"security_opt systempaths": c.Security.AllPaths, "security_opt label": len(c.Security.SELinux) > 0,
		} {
			if asked {
				return invalid.Errorf("%s is not permitted on this node: allow_privileged of the plugin", what)
			}
		}
	}
	if len(p.AllowRuntimes) > 0 && c.Runtime != "" && !slices.Contains(p.AllowRuntimes, c.Runtime) {
		return invalid.Errorf("runtime %q is not permitted on this node: allow_runtimes of the plugin", c.Runtime)
	}
	for _, m := range c.Mounts {
		if m.Options != nil && !p.Volumes {
			return invalid.Errorf("driver_config options of the volume %s are not permitted on this node: volumes.enabled of the plugin", m.Source)
		}
		if m.Type == "bind" {
			source, err := a.hostPath(m.Source)
			if err == nil {
				err = a.mayBind(m.Source, source, m.ReadOnly)
			}
			if err != nil {
				return err
			}
		}
	}
	if c.Rootfs != "" {
		dir, err := a.hostPath(c.Rootfs)
		if err == nil && dir != a.taskDir() {
			err = a.mayBind(c.Rootfs, dir, false)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// taskDir is the task's directory on the host.
func (a Task) taskDir() string { return filepath.Join(a.Nomad.GetAllocDir(), a.Nomad.GetName()) }

// Labels are the job's, and Nomad's own names of the task.
func (a Task) Labels() map[string]string {
	l := map[string]string{}
	for k, v := range a.Conf.Labels {
		l[k] = v
	}
	for k, v := range map[string]string{
		"alloc_id": a.Nomad.GetAllocId(), "job_id": a.Nomad.GetJobId(), "job_name": a.Nomad.GetJobName(), "namespace": a.Nomad.GetNamespace(),
		"node_id": a.Nomad.GetNodeId(), "node_name": a.Nomad.GetNodeName(), "task_group_name": a.Nomad.GetTaskGroupName(), "task_name": a.Nomad.GetName(),
	} {
		if v != "" {
			l[LabelPrefix+k] = v
		}
	}
	l[DriverLabel] = a.Session.Name
	return l
}

// anonymous returns the name of an anonymous volume of the job. A repeated call returns the same.
func (a Task) anonymous(target string) string {
	sum := sha256.Sum256([]byte(a.Nomad.GetId() + "\x00" + target))
	return "anonymous-" + hex.EncodeToString(sum[:16])
}

func withAnonymous(labels map[string]string) map[string]string {
	all := map[string]string{core.AnonymousLabel: "true"}
	maps.Copy(all, labels)
	return all
}

// DriverLabel is the label with the name of the driver that started the task.
const DriverLabel = "longshore.nomad.driver"

// LabelPrefix begins the labels that say which task a container is.
const LabelPrefix = "com.hashicorp.nomad."

// Container is the task as the engine's container.
func (a Task) Container(sandbox core.ID, images Images) (core.ContainerConfig, error) {
	c := core.ContainerConfig{
		Key: core.Key(a.Nomad.GetId()), Labels: a.Labels(), Sandbox: sandbox, CDI: a.Conf.CDI, Init: a.Conf.Init, SleepAfter: a.Conf.SleepAfter, Disk: a.Conf.Disk,
		Cgroup: a.cgroup(), Stop: core.Stop{Signal: a.Conf.StopSignal},
		Root: core.Root{Image: images.Root.ID, ReadOnly: a.Conf.ReadOnly},
		IO:   core.IO{TTY: a.Conf.TTY, Sinks: a.sinks()}, Images: a.imageMounts(images.Mounts), Labelled: true,
	}
	if a.Conf.Stdin {
		c.IO.Stdin = core.StdinOpen
	}
	if a.asExec() && c.Stop.Signal == "" {
		c.Stop.Signal = "SIGINT"
	}
	var err error
	if a.Conf.Rootfs != "" {
		if c.Root.Dir, err = a.hostPath(a.Conf.Rootfs); err == nil {
			c.Root.Below, err = a.below(c.Root.Dir)
		}
		if err != nil {
			return c, err
		}
	}
	for _, m := range a.Conf.Mounts {
		if m.Type == "volume" {
			if m.Anonymous {
				m.Source, m.Labels = a.anonymous(m.Target), withAnonymous(m.Labels)
			}
			c.Volumes = append(c.Volumes, core.VolumeMount{
				Name: m.Source, Target: m.Target, ReadOnly: m.ReadOnly, NoCopy: m.NoCopy, Labels: m.Labels, Options: m.Options, SubPath: strings.TrimPrefix(m.SubPath, "/"),
				Private: m.Relabel == ocispec.RelabelPrivate,
			})
		}
	}
	if c.LogDriver, err = a.logDriver(); err != nil {
		return c, err
	}
	base, err := a.base()
	if err != nil {
		return c, err
	}
	c.Spec, c.Users = a.finish(base), ocispec.UserNeeds(base)
	ocispec.Granted{
		Document: a.Conf.Grants, Asked: a.Conf.Granted, Runtime: a.Conf.Runtime, Image: &images.Root, Secrets: []string{a.envDir("NOMAD_SECRETS_DIR", "/secrets")},
		Identity: core.Identity{Namespace: a.Nomad.GetNamespace(), Pod: a.Nomad.GetAllocId(), Container: a.Nomad.GetName(), Image: a.Conf.Image},
	}.Apply(&c)
	return c, nil
}

// logDriver returns the task's log driver. One without a name is the node's default.
func (a Task) logDriver() (*core.LogDriver, error) {
	d := &core.LogDriver{}
	if a.Conf.LogDriver != "" {
		var env []string
		for k, v := range a.Nomad.Env {
			env = append(env, k+"="+v)
		}
		for k, v := range a.Conf.Env {
			env = append(env, k+"="+v)
		}
		var err error
		if d, err = driver.Authored(a.Conf.LogDriver, a.Conf.LogOptions, a.Labels(), env); err != nil {
			return nil, err
		}
	}
	d.Image, d.Command = a.Conf.Image, strings.Join(a.Conf.Command, " ")
	return d, nil
}

// The defaults of Nomad's own log collector.
const (
	logFiles = 10
	logBytes = 10 << 20
)

// sinks: Nomad names FIFOs, which nobody has made when we write the files
// ourselves, or /dev/null when the job wants no logs.
func (a Task) sinks() []core.Sink {
	if a.Conf.NoLogs {
		return nil
	}
	var list []core.Sink
	for i, p := range []string{a.Nomad.GetStdoutPath(), a.Nomad.GetStderrPath()} {
		if p == "" || p == "/dev/null" {
			continue
		}
		s := core.Sink{Format: core.FormatRaw, Stdout: i == 0, Stderr: i == 1, Path: p}
		if a.Session.Logs == plugin.LogFiles {
			s.Path = filepath.Join(a.Nomad.GetAllocDir(), "alloc", "logs", a.Nomad.GetName()+[]string{".stdout.0", ".stderr.0"}[i])
			s.Numbered, s.MaxFiles, s.MaxBytes = true, logFiles, logBytes
			if a.Conf.LogFiles > 0 {
				s.MaxFiles = a.Conf.LogFiles
			}
			if a.Conf.LogBytes > 0 {
				s.MaxBytes = a.Conf.LogBytes
			}
		}
		if _, ok := beneath.Rel(a.Nomad.GetAllocDir(), s.Path); ok {
			s.Below = a.Nomad.GetAllocDir()
		}
		list = append(list, s)
	}
	return list
}

// capabilities are the default ones that the operator allows, with the job's additions and
// removals. The default is that of Nomad's own drivers; docker's has NET_RAW if the operator allows
// it.
func (a Task) capabilities() ([]string, error) {
	allowed, err := ocispec.Capabilities(ocispec.DefaultCapabilities(), nil, []string{"NET_RAW"})
	if err != nil {
		return nil, err
	}
	base := slices.Clone(allowed)
	if a.Session.Name == plugin.DockerName && a.Session.AllowCaps != nil {
		base = ocispec.DefaultCapabilities()
	}
	if a.Session.AllowCaps != nil {
		if allowed, err = ocispec.Capabilities(nil, a.Session.AllowCaps, nil); err != nil {
			return nil, fmt.Errorf("allow_caps of the plugin: %w", err)
		}
		base = slices.DeleteFunc(base, func(c string) bool { return !slices.Contains(allowed, c) })
	}
	added, err := ocispec.Capabilities(nil, a.Conf.CapAdd, nil)
	if err != nil {
		return nil, fmt.Errorf("config.cap_add: %w", err)
	}
	var refused []string
	for _, c := range added {
		if !slices.Contains(allowed, c) {
			refused = append(refused, strings.ToLower(strings.TrimPrefix(c, "CAP_"))) // as jobs write them
		}
	}
	if len(refused) > 0 {
		return nil, invalid.Errorf("config.cap_add: not permitted on this node by allow_caps of the plugin: %s", strings.Join(refused, ", "))
	}
	caps, err := ocispec.Capabilities(base, a.Conf.CapAdd, a.Conf.CapDrop)
	if err != nil {
		return nil, fmt.Errorf("config.cap_drop: %w", err)
	}
	return caps, nil
}
