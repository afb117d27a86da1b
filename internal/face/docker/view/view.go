// Package view makes the documents of containers for Docker's API from the engine's records. Start at Container and Summary.
package view

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/dockertypes"
	"github.com/longshore/longshore/internal/face/docker/translate"
	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/solo"
)

// Object is a container with everything that its documents show.
type Object struct {
	Container core.Container
	Sandbox   core.Sandbox
	Asked     *translate.Create
	Record    *solo.Record
	// Links are those of the container to others, and Aliases the names that links of others give it, as docker shows them.
	Links, Aliases []string
	// NetworkID returns the id of a network by its name.
	NetworkID func(name string) string
	// VolumePath returns the directory of a volume's files.
	VolumePath func(name string) string
	// Unified says that the node has cgroup v2.
	Unified bool
}

// NeverTime is Docker's value of an unset time.
const NeverTime = "0001-01-01T00:00:00Z"

// The statuses of a container.
const (
	Created    = "created"
	Running    = "running"
	Paused     = "paused"
	Restarting = "restarting"
	Exited     = "exited"
	Removing   = "removing"
)

// NeverRan reports whether a container was not started yet.
func NeverRan(c *core.Container) bool {
	return c.State == core.ContainerCreated || c.State == core.ContainerExited && c.Main.Started.IsZero() && (c.Main.Autopsy == nil || c.Main.Autopsy.Start == "")
}

// Status returns a container's status.
func Status(c *core.Container) string {
	switch {
	case c.Removing:
		return Removing
	case c.State == core.ContainerPaused:
		return Paused
	case c.Restarting():
		return Restarting
	case c.State.Runs():
		return Running
	case NeverRan(c), c.Main.Started.IsZero():
		return Created
	}
	return Exited
}

// ExitCode returns the exit code of a container's last run, 0 if there was none.
func ExitCode(c *core.Container) int {
	a := c.Main.Autopsy
	switch {
	case NeverRan(c) || a == nil || c.State.Live():
		return 0
	case a.Start != "" && a.Exit.Status() == 0:
		return startCode(a)
	}
	return a.Exit.Status()
}

// startCode returns the exit code of a program that could not be started.
func startCode(a *core.Autopsy) int {
	if strings.Contains(a.Start, "permission denied") {
		return 126
	}
	return 127
}

// Stamp returns a time as documents have it.
func Stamp(t time.Time) string {
	if t.IsZero() {
		return NeverTime
	}
	return t.UTC().Format(time.RFC3339Nano)
}

func (o *Object) state() *dockertypes.State {
	c := &o.Container
	status := Status(c)
	s := &dockertypes.State{
		Status: status, Running: status == Running || status == Paused || status == Restarting, Paused: status == Paused, Restarting: status == Restarting,
		ExitCode: ExitCode(c), StartedAt: Stamp(c.Main.Started), FinishedAt: NeverTime,
	}
	if (status == Running || status == Paused) && c.State != core.ContainerExited {
		s.Pid = c.Main.Pid
	}
	if a := c.Main.Autopsy; a != nil && status != Running && status != Paused {
		s.Error = a.Start
		if !NeverRan(c) {
			s.FinishedAt, s.OOMKilled = Stamp(c.Main.Finished), a.OOM != nil && a.OOM.Main
		}
	}
	if text := c.Restarts.Error; text != "" {
		s.Error = text
	}
	if health := o.Record.HealthStatus(c); health != "" && status != Created {
		h := &dockertypes.Health{Status: health, Log: []*dockertypes.Probe{}}
		if now := c.HealthNow(); now != nil {
			h.FailingStreak = now.Failures
			for _, p := range now.Probes {
				h.Log = append(h.Log, &dockertypes.Probe{Start: p.Start, End: p.End, ExitCode: p.Code, Output: p.Output})
			}
		}
		if status == Exited {
			h.Status = "unhealthy" // the monitor has stopped
		}
		s.Health = h
	}
	return s
}

// Inspect returns the document of inspect.
func (o *Object) Inspect() *dockertypes.Container {
	c := &o.Container
	program, args := "", []string{}
	if all := append(slices.Clone([]string(o.Asked.Entrypoint)), o.Asked.Cmd...); len(all) > 0 {
		program, args = all[0], all[1:]
	}
	host := *o.Asked.HostConfig
	host.RestartPolicy = dockertypes.RestartPolicy{Name: orNo(string(c.Config.Restart.Name)), MaximumRetryCount: c.Config.Restart.Max}
	complete(&host)
	host.Links = o.Links
	doc := &dockertypes.Container{
		ContainerJSONBase: &dockertypes.ContainerJSONBase{
			ID: string(c.ID), Created: Stamp(c.Created), Path: program, Args: args, State: o.state(), Image: string(c.Image), Name: "/" + string(c.Key),
			RestartCount: c.Restarts.Count, Driver: "overlay2", Platform: "linux", HostConfig: &host, ExecIDs: o.execs(),
			GraphDriver: dockertypes.GraphDriver{Name: "overlay2", Data: map[string]string{"MergedDir": c.Bundle + "/rootfs"}},
		},
		Mounts: o.mounts(), NetworkSettings: o.network(),
	}
	never := NeverRan(c)
	if log := o.Record.Log; log != "" && !never {
		doc.LogPath = log
	}
	if dir := o.Sandbox.Dir; dir != "" && !never {
		doc.ResolvConfPath, doc.HostnamePath, doc.HostsPath = dir+"/resolv.conf", dir+"/hostname", dir+"/hosts"
	}
	if ocispec.AppArmorEnabled() && !never {
		doc.AppArmorProfile = o.profile()
	}
	if p, err := ocispec.BundleProcess(o.Container.Bundle); err == nil && p.SelinuxLabel != "" {
		doc.ProcessLabel, doc.MountLabel = p.SelinuxLabel, o.Container.Config.FileLabel
	}
	config := *o.Asked.Config
	if config.Hostname == "" && o.Sandbox.Config.Namespaces.Net.Mode != core.Joined {
		config.Hostname = o.Sandbox.Config.Hostname
	}
	if o.Sandbox.Config.Namespaces.Net.Mode == core.Host && config.Hostname == "" {
		config.Hostname, _ = os.Hostname() // the node's
	}
	doc.Config = &config
	return doc
}

// profile returns the name of the AppArmor profile that the container's program has, as dockerd does.
func (o *Object) profile() string {
	p, err := ocispec.BundleProcess(o.Container.Bundle)
	switch {
	case err != nil:
		return "" // it is being removed
	case p.ApparmorProfile == "":
		return "unconfined"
	}
	return p.ApparmorProfile
}

func orNo(name string) string {
	if name == "" {
		return "no"
	}
	return name
}

// complete sets the defaults that are not stored with a container. Lists stay null where the request had none, as dockerd shows them.
func complete(h *dockertypes.HostConfig) {
	if h.Runtime == "" {
		h.Runtime = "runc"
	}
	if !h.Privileged && h.MaskedPaths == nil {
		h.MaskedPaths = []string{
			"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/timer_stats",
			"/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
		}
	}
	if !h.Privileged && h.ReadonlyPaths == nil {
		h.ReadonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
	}
}

func (o *Object) execs() (ids []string) {
	for _, p := range o.Container.Execs {
		if p.Finished.IsZero() && len(p.ID) == execLength {
			ids = append(ids, string(p.ID))
		}
	}
	return ids
}

// execLength is the length of an exec's id. Other execs, such as probes, are not the API's.
const execLength = 64

// mounts returns the mounts of the request. Those of Tmpfs are not among them.
func (o *Object) mounts() []dockertypes.MountPoint {
	list := []dockertypes.MountPoint{}
	for _, v := range o.Container.Config.Volumes {
		m := dockertypes.MountPoint{Type: "volume", Name: v.Name, Destination: v.Target, Driver: "local", Mode: "z", RW: !v.ReadOnly}
		if o.VolumePath != nil {
			m.Source = o.VolumePath(v.Name)
		}
		if v.Labels[core.AnonymousLabel] != "" && !slices.ContainsFunc(o.Asked.HostConfig.Mounts, func(m dockertypes.Mount) bool { return path.Clean(m.Target) == v.Target }) {
			m.Mode = ""
		} else if mode := o.bindMode(v.Target); mode != "" {
			m.Mode = mode
		}
		list = append(list, m)
	}
	rec := o.Record
	for _, b := range rec.Settings.Binds {
		m := dockertypes.MountPoint{Type: "bind", Source: b.Source, Destination: b.Target, RW: !b.ReadOnly, Propagation: b.Propagation, Mode: o.bindMode(b.Target)}
		if m.Propagation == "" {
			m.Propagation = "rprivate"
		}
		list = append(list, m)
	}
	for _, m := range o.Asked.HostConfig.Mounts {
		switch m.Type {
		case "tmpfs":
			list = append(list, dockertypes.MountPoint{Type: "tmpfs", Destination: m.Target, RW: !m.ReadOnly})
		case "image":
			list = append(list, dockertypes.MountPoint{Type: "image", Name: m.Source, Destination: path.Clean(m.Target), Propagation: "rprivate"})
		}
	}
	return list
}

// bindMode returns the options of a bind as the request has them.
func (o *Object) bindMode(target string) string {
	for _, b := range o.Asked.HostConfig.Binds {
		if parts := strings.Split(b, ":"); len(parts) == 3 && parts[1] == target {
			return parts[2]
		}
	}
	return ""
}

// running reports whether the container has its addresses and ports.
func (o *Object) running() bool {
	return o.Sandbox.State == core.SandboxReady && o.Container.State.Live()
}

// ports returns the published ports of a running container, and with null those that are exposed only.
func (o *Object) ports() dockertypes.PortMap {
	out := dockertypes.PortMap{}
	if !o.running() || o.Sandbox.Config.Namespaces.Net.Mode == core.Host || o.Sandbox.Config.Network.Name == core.NetworkNone {
		return out
	}
	for p := range o.Asked.ExposedPorts {
		out[p] = nil
	}
	for _, p := range o.Sandbox.Network.Ports {
		port := dockertypes.Port(strconv.Itoa(int(p.Container)) + "/" + p.Proto)
		host := strconv.Itoa(int(p.Host))
		if p.HostIP.IsValid() {
			out[port] = append(out[port], dockertypes.PortBinding{HostIP: p.HostIP.String(), HostPort: host})
			continue
		}
		out[port] = append(out[port], dockertypes.PortBinding{HostIP: "0.0.0.0", HostPort: host}, dockertypes.PortBinding{HostIP: "::", HostPort: host})
	}
	return out
}

func (o *Object) network() *dockertypes.NetworkSettings {
	n := &dockertypes.NetworkSettings{Networks: o.Endpoints(true)}
	n.Ports = o.ports()
	if o.running() {
		n.SandboxID, n.SandboxKey = string(o.Sandbox.ID), o.Sandbox.Config.Namespaces.Net.Path
	}
	if e := n.Networks["bridge"]; e != nil {
		n.DefaultNetworkSettings = dockertypes.DefaultNetworkSettings{
			EndpointID: e.EndpointID, Gateway: e.Gateway, GlobalIPv6Address: e.GlobalIPv6Address, GlobalIPv6PrefixLen: e.GlobalIPv6PrefixLen,
			IPAddress: e.IPAddress, IPPrefixLen: e.IPPrefixLen, IPv6Gateway: e.IPv6Gateway, MacAddress: e.MacAddress,
		}
	}
	return n
}

// Endpoints returns the places of the container on its networks. Without aliases they are those of lists.
func (o *Object) Endpoints(aliases bool) map[string]*dockertypes.Endpoint {
	out := map[string]*dockertypes.Endpoint{}
	add := func(name string) *dockertypes.Endpoint {
		e := &dockertypes.Endpoint{}
		if a := o.endpointAsked(name); a != nil {
			e.IPAMConfig, e.Links, e.DriverOpts, e.GwPriority = a.IPAMConfig, a.Links, a.DriverOpts, a.GwPriority
			if aliases {
				e.Aliases = a.Aliases
			}
		}
		if !NeverRan(&o.Container) {
			e.NetworkID = o.NetworkID(name)
		}
		if o.running() {
			e.EndpointID = EndpointID(o.Container.ID, name)
		}
		out[name] = e
		return e
	}
	switch o.Sandbox.Config.Namespaces.Net.Mode {
	case core.Host:
		add("host")
		return out
	case core.Joined:
		return out
	case core.PerContainer, core.Shared, core.Adopted:
	}
	if o.Sandbox.Config.Network.Name == core.NetworkNone {
		if o.Asked.HostConfig.NetworkMode == "none" {
			add("none")
		}
		return out // without networks after they were disconnected
	}
	for _, a := range o.Sandbox.Config.Network.Attached() {
		name, engine := a.Network, a.Network
		if name == "" || name == core.NetworkDefault {
			name, engine = "bridge", core.NetworkDefault
		}
		e := add(name)
		if NeverRan(&o.Container) {
			e.MacAddress = a.MAC
		}
		if name != "bridge" && aliases {
			if !NeverRan(&o.Container) {
				e.DNSNames = o.dnsNames(a.Names)
			}
			if o.endpointAsked(name) == nil && len(a.Names) > 0 {
				e.Aliases = slices.Clone(a.Names)
			}
		}
		if e.IPAMConfig == nil && len(a.Addrs) > 0 { // of a later connect
			e.IPAMConfig = &dockertypes.EndpointIPAM{}
			for _, p := range a.Addrs {
				if p.Addr().Is4() {
					e.IPAMConfig.IPv4Address = p.Addr().String()
				} else {
					e.IPAMConfig.IPv6Address = p.Addr().String()
				}
			}
		}
		if i := o.Sandbox.Network.On(engine); i >= 0 && o.running() {
			place(e, &o.Sandbox.Network.Interfaces[i], o.Sandbox.Network.Gateways)
		}
	}
	return out
}

// endpointAsked returns the settings of a network in the request.
func (o *Object) endpointAsked(name string) *dockertypes.Endpoint {
	if o.Asked.NetworkingConfig == nil {
		return nil
	}
	all := o.Asked.NetworkingConfig.EndpointsConfig
	if e := all[name]; e != nil {
		return e
	}
	return all[o.NetworkID(name)]
}

func (o *Object) dnsNames(aliases []string) []string {
	list := append([]string{string(o.Container.Key)}, aliases...)
	list = append(list, o.Container.ID.Short())
	if h := o.Sandbox.Config.Hostname; h != "" {
		list = append(list, h)
	}
	var out []string
	for _, n := range list {
		if !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out
}

// place sets the addresses of an endpoint.
func place(e *dockertypes.Endpoint, i *core.Attachment, gateways []netip.Addr) {
	e.MacAddress = i.MAC
	for _, p := range i.Addrs {
		if p.Addr().Is4() {
			e.IPAddress, e.IPPrefixLen = p.Addr().String(), p.Bits()
		} else {
			e.GlobalIPv6Address, e.GlobalIPv6PrefixLen = p.Addr().String(), p.Bits()
		}
	}
	for _, g := range gateways {
		if !slices.ContainsFunc(i.Addrs, func(p netip.Prefix) bool { return p.Contains(g) }) {
			continue // of another network
		}
		if g.Is4() {
			e.Gateway = g.String()
		} else {
			e.IPv6Gateway = g.String()
		}
	}
}

// Summary is a container in a list.
type Summary struct {
	ID         string `json:"Id"`
	Names      []string
	Image      string
	ImageID    string
	Command    string
	Created    int64
	Ports      []PublishedPort
	SizeRw     int64 `json:",omitempty"`
	SizeRootFs int64 `json:",omitempty"`
	Labels     map[string]string
	State      string
	Status     string
	HostConfig struct {
		NetworkMode string
		Annotations map[string]string `json:",omitempty"`
	}
	NetworkSettings struct {
		Networks map[string]*dockertypes.Endpoint
	}
	Mounts []dockertypes.MountPoint
}

// PublishedPort is a port in a list.
type PublishedPort struct {
	IP          string `json:",omitempty"`
	PrivatePort uint16
	PublicPort  uint16 `json:",omitempty"`
	Type        string
}

// Summary returns the entry of a list. now is the time for its status.
func (o *Object) Summary(now time.Time, _ dockerhttp.Version) Summary {
	c := &o.Container
	s := Summary{
		ID: string(c.ID), Names: append([]string{"/" + string(c.Key)}, o.Aliases...), Image: o.Asked.Image, ImageID: string(c.Image), Command: o.command(), Created: c.Created.Unix(),
		Ports: o.publishedPorts(), Labels: c.Labels, State: Status(c), Status: o.StatusText(now), Mounts: o.mounts(),
	}
	if s.Labels == nil {
		s.Labels = map[string]string{}
	}
	s.HostConfig.NetworkMode, s.HostConfig.Annotations = o.Asked.HostConfig.NetworkMode, o.Asked.HostConfig.Annotations
	s.NetworkSettings.Networks = o.Endpoints(false)
	return s
}

// command returns the command as a line.
func (o *Object) command() string {
	var words []string
	for i, w := range append(slices.Clone([]string(o.Asked.Entrypoint)), o.Asked.Cmd...) {
		if i > 0 && strings.Contains(w, " ") {
			w = "'" + w + "'"
		}
		words = append(words, w)
	}
	return strings.Join(words, " ")
}

func (o *Object) publishedPorts() []PublishedPort {
	list := []PublishedPort{}
	for _, p := range slices.Sorted(maps.Keys(o.ports())) {
		number, proto, _ := strings.Cut(string(p), "/")
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil {
			continue
		}
		bindings := o.ports()[p]
		if len(bindings) == 0 {
			list = append(list, PublishedPort{PrivatePort: uint16(n), Type: proto})
		}
		for _, b := range bindings {
			host, err := strconv.ParseUint(b.HostPort, 10, 16)
			if err != nil {
				continue
			}
			list = append(list, PublishedPort{IP: b.HostIP, PrivatePort: uint16(n), PublicPort: uint16(host), Type: proto})
		}
	}
	return list
}

// StatusText returns the status with its time, such as Up 2 minutes (healthy).
func (o *Object) StatusText(now time.Time) string {
	c := &o.Container
	up := "Up " + Duration(now.Sub(c.Main.Started))
	ended := Duration(now.Sub(c.Main.Finished)) + " ago"
	switch Status(c) {
	case Paused:
		return up + " (Paused)"
	case Restarting:
		return fmt.Sprintf("Restarting (%d) %s", ExitCode(c), ended)
	case Running:
		switch health := o.Record.HealthStatus(c); health {
		case "":
			return up
		case "starting":
			return up + " (health: starting)"
		default:
			return up + " (" + health + ")"
		}
	case Removing:
		return "Removal In Progress"
	case Created:
		return "Created"
	}
	return fmt.Sprintf("Exited (%d) %s", ExitCode(c), ended)
}

// Duration returns a duration in words, as docker prints it.
func Duration(d time.Duration) string {
	seconds, minutes, hours := int(d.Seconds()), int(d.Minutes()), int(d.Hours()+0.5)
	switch {
	case seconds < 1:
		return "Less than a second"
	case seconds == 1:
		return "1 second"
	case seconds < 60:
		return fmt.Sprintf("%d seconds", seconds)
	case minutes == 1:
		return "About a minute"
	case minutes < 60:
		return fmt.Sprintf("%d minutes", minutes)
	case hours == 1:
		return "About an hour"
	case hours < 48:
		return fmt.Sprintf("%d hours", hours)
	case hours < 24*7*2:
		return fmt.Sprintf("%d days", hours/24)
	case hours < 24*30*2:
		return fmt.Sprintf("%d weeks", hours/24/7)
	case hours < 24*365*2:
		return fmt.Sprintf("%d months", hours/24/30)
	}
	return fmt.Sprintf("%d years", hours/24/365)
}
