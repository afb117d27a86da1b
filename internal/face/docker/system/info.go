package system

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/dockertypes"
	"github.com/longshore/longshore/internal/hostinfo"
	"github.com/longshore/longshore/internal/ocispec"
	kernel "github.com/longshore/longshore/internal/stats"
)

const (
	// driver is dockerd's name for storage on overlayfs.
	driver = "overlay2"
	// hub is Docker's registry, and index its address in old clients.
	hub   = "docker.io"
	index = "https://index.docker.io/v1/"
)

// The states of a node's membership of a Swarm.
const (
	inactive = "inactive"
	active   = "active"
)

func (s *Server) swarm() dockertypes.Swarm {
	if s.Swarm == nil {
		return dockertypes.Swarm{LocalNodeState: inactive}
	}
	return s.Swarm()
}

// older is the answer to clients that expect members which dockerd no longer has.
type older struct {
	*dockertypes.SystemInfo
	BridgeNfIptables  bool
	BridgeNfIP6tables bool `json:"BridgeNfIp6tables"`
}

// oldest is the answer to clients before 1.47.
type oldest struct {
	older
	RegistryConfig registries
}

// registries has the settings of registries with those for layers of other origins, which dockerd has dropped.
type registries struct {
	AllowNondistributableArtifactsCIDRs     []string
	AllowNondistributableArtifactsHostnames []string
	*dockertypes.RegistryConfig
}

// info describes the node and counts the owner's objects.
func (s *Server) info(w http.ResponseWriter, r *dockerhttp.Request) error {
	doc, err := s.describe(r.Context())
	if err != nil {
		return err
	}
	if r.API.Before("1.25") { // names alone
		for i, option := range doc.SecurityOptions {
			name, _, _ := strings.Cut(option, ",")
			doc.SecurityOptions[i] = strings.TrimPrefix(name, "name=")
		}
	}
	if r.API.Before("1.49") {
		doc.FirewallBackend, doc.RuncCommit.Expected = nil, doc.RuncCommit.ID
	}
	if r.API.Before("1.47") {
		return dockerhttp.Reply(w, http.StatusOK, oldest{older{SystemInfo: doc}, registries{RegistryConfig: doc.RegistryConfig}})
	}
	if r.API.Before("1.50") {
		return dockerhttp.Reply(w, http.StatusOK, older{SystemInfo: doc})
	}
	return dockerhttp.Reply(w, http.StatusOK, doc)
}

func (s *Server) describe(ctx context.Context) (*dockertypes.SystemInfo, error) {
	host := hostinfo.Read()
	doc := &dockertypes.SystemInfo{
		ID: host.ID, Name: host.Name, OperatingSystem: host.System, OSVersion: host.Version, OSType: runtime.GOOS, KernelVersion: host.Kernel,
		Architecture: host.Machine, NCPU: host.CPUs, MemTotal: int64(host.Memory), ServerVersion: s.Build.Version,
		Driver: driver, DriverStatus: [][2]string{}, LoggingDriver: "json-file", IndexServerAddress: index,
		Plugins: dockertypes.PluginsInfo{
			Volume: []string{"local"}, Network: []string{"bridge", "host", "null"}, Log: []string{"json-file", "local"},
		},
		MemoryLimit: true, CPUCfsPeriod: true, CPUCfsQuota: true, CPUShares: true, CPUSet: true, PidsLimit: true,
		IPv4Forwarding: bytes.HasPrefix(content("/proc/sys/net/ipv4/ip_forward"), []byte("1")),
		NFd:            descriptors(), NGoroutines: runtime.NumGoroutine(), SystemTime: time.Now().UTC().Format(time.RFC3339Nano),
		CgroupDriver: "cgroupfs", CgroupVersion: "1", Labels: []string{}, Runtimes: map[string]dockertypes.Runtime{}, Swarm: s.swarm(),
		LiveRestoreEnabled: true, InitBinary: "longshore-keeper", SecurityOptions: []string{"name=seccomp,profile=builtin"}, CDISpecDirs: s.CDIDirs,
	}
	if s.CgroupDriver != "" {
		doc.CgroupDriver = s.CgroupDriver
	}
	if s.Readers != nil {
		doc.NEventsListener = s.Readers()
	}
	if s.Engine.Stats.Cgroups.Mode() == core.CgroupV2 {
		doc.CgroupVersion, doc.SwapLimit = "2", true
		doc.SecurityOptions = append(doc.SecurityOptions, "name=cgroupns")
	} else {
		doc.OomKillDisable, doc.SwapLimit = true, len(content("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes")) > 0
	}
	if ocispec.AppArmorEnabled() {
		doc.SecurityOptions = append([]string{"name=apparmor"}, doc.SecurityOptions...)
	}
	doc.RegistryConfig = &dockertypes.RegistryConfig{
		InsecureRegistryCIDRs: []string{"::1/128", "127.0.0.0/8"},
		IndexConfigs:          map[string]*dockertypes.Registry{hub: {Name: hub, Mirrors: []string{}, Secure: true, Official: true}},
	}
	if s.Registries != nil {
		doc.RegistryConfig = s.Registries()
	}
	return doc, s.count(ctx, doc)
}

// count sets the numbers of objects, and the names of runtimes and directories.
func (s *Server) count(ctx context.Context, doc *dockertypes.SystemInfo) error {
	runtimes, err := s.Engine.Runtimes(ctx)
	if err != nil {
		return err
	}
	for _, rt := range runtimes {
		if rt.Problem == "" {
			doc.Runtimes[rt.Name] = dockertypes.Runtime{Path: rt.Features.Path}
		}
		if rt.Name == "runc" {
			doc.RuncCommit.ID = versionOf(rt)
		}
		if rt.Default {
			doc.DefaultRuntime = rt.Name
		}
	}
	containers, err := s.Engine.Stored.Containers()
	if err != nil {
		return err
	}
	for _, c := range containers {
		doc.Containers++
		switch {
		case c.State == core.ContainerPaused:
			doc.ContainersPaused++
		case c.State.Runs(), c.Restarting():
			doc.ContainersRunning++
		default:
			doc.ContainersStopped++
		}
	}
	images, err := s.Engine.Images.List(ctx)
	if err != nil {
		return fmt.Errorf("list images: %w", err)
	}
	ids := map[digest.Digest]bool{}
	for _, img := range images {
		ids[img.ID] = true
	}
	doc.Images = len(ids)
	usage, err := s.Engine.Images.Usage(ctx)
	if err != nil {
		return err
	}
	doc.DockerRootDir = usage.Path
	if net, err := s.Engine.Network.Info(ctx); err == nil && net.Mode == "builtin" {
		doc.FirewallBackend = &dockertypes.Firewall{Driver: "nftables"}
	}
	return nil
}

// content returns the content of a file of the kernel, or nothing.
func content(path string) []byte {
	b, err := kernel.File(path)
	if err != nil {
		return nil
	}
	return b
}

// descriptors returns the number of the agent's open files.
func descriptors() int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(list)
}
