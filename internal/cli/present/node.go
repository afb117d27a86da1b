package present

import (
	"runtime"
	"strings"
	"time"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/dockertypes"
)

// Info returns the document of info. member is the node's membership of a Swarm, nil for none, and now the node's time.
func Info(r *longshorev1.InfoResponse, member *longshorev1.SwarmStatus, client string, now time.Time) Filled {
	runtimes, own, standard := map[string]dockertypes.Runtime{}, map[string]any{}, ""
	for _, rt := range r.GetVersion().GetRuntimes() {
		runtimes[rt.GetName()] = dockertypes.Runtime{Path: rt.GetPath()}
		own[rt.GetName()] = map[string]any{"version": rt.GetVersion(), "problem": rt.GetProblem()}
		if rt.GetDefault() {
			standard = rt.GetName()
		}
	}
	version := strings.TrimPrefix(r.GetCgroups(), "v")
	if r.GetCgroups() == "hybrid" { // the controllers are on v1
		version = "1"
	}
	limits := version != ""
	info := &dockertypes.Info{
		SystemInfo: &dockertypes.SystemInfo{
			Name: r.GetHostname(), OperatingSystem: r.GetSystem(), OSType: "linux", KernelVersion: r.GetVersion().GetKernel(),
			Architecture: machine(strings.TrimPrefix(r.GetVersion().GetPlatform(), "linux/")), NCPU: int(r.GetCpus()), MemTotal: int64(r.GetMemoryBytes()),
			Containers: int(r.GetRunning() + r.GetPaused() + r.GetStopped()), ContainersRunning: int(r.GetRunning()), ContainersPaused: int(r.GetPaused()),
			ContainersStopped: int(r.GetStopped()), Images: int(r.GetImages()), ServerVersion: r.GetVersion().GetVersion(), Driver: storageDriver,
			DriverStatus: [][2]string{}, DockerRootDir: r.GetStorage(), CgroupVersion: version, Runtimes: runtimes, DefaultRuntime: standard,
			MemoryLimit: limits, CPUCfsPeriod: limits, CPUCfsQuota: limits, CPUShares: limits, CPUSet: limits, PidsLimit: limits,
			IPv4Forwarding: r.GetNetwork() == "builtin", // the network turns it on
			Plugins:        dockertypes.PluginsInfo{Volume: []string{"local"}, Network: []string{"bridge", "host", "null"}, Log: []string{logDriver}},
			LoggingDriver:  logDriver, SystemTime: now.UTC().Format(time.RFC3339Nano), Labels: []string{}, Swarm: swarm(member),
			SecurityOptions: []string{"name=seccomp,profile=builtin"}, RegistryConfig: &dockertypes.RegistryConfig{},
		},
		ClientInfo: &dockertypes.ClientInfo{ClientVersion: clientVersion(client), Plugins: []dockertypes.Plugin{}},
	}
	return filled(info, map[string]any{
		"Volumes": int(r.GetVolumes()), "StorageRoot": r.GetStorage(), "Network": r.GetNetwork(), "NetworkRanges": r.GetNetworkRanges(), "Runtimes": own,
	})
}

// swarm returns docker's description of a membership. A worker does not know the IDs of its managers.
func swarm(m *longshorev1.SwarmStatus) dockertypes.Swarm {
	s := dockertypes.Swarm{NodeID: m.GetNode(), LocalNodeState: "inactive", Error: m.GetError()}
	switch {
	case m.GetNode() != "":
		s.LocalNodeState = "active"
	case m.GetError() != "":
		s.LocalNodeState = "error"
	}
	for _, addr := range m.GetManagers() {
		s.RemoteManagers = append(s.RemoteManagers, dockertypes.Manager{Addr: addr})
	}
	return s
}

// logDriver is the name of the agent's own logs.
const logDriver = "longshore"

// machine returns the name of the processor as uname has it, which is docker's in info.
func machine(arch string) string {
	arch, variant, _ := strings.Cut(arch, "/")
	switch arch {
	case "amd64":
		return "x86_64"
	case "arm64":
		return "aarch64"
	case "arm":
		return "arm" + variant + "l"
	}
	return arch
}

// Version returns the document of version. v is nil if the agent does not answer.
func Version(v *longshorev1.VersionResponse, client string) Filled {
	doc, own := &dockertypes.Version{Client: clientVersion(client)}, map[string]any{}
	if v != nil {
		system, arch, _ := strings.Cut(v.GetPlatform(), "/")
		doc.Server = &dockertypes.ServerVersion{
			Platform: dockertypes.PlatformInfo{Name: "Longshore"}, Version: v.GetVersion(), GoVersion: v.GetGo(), Os: system, Arch: arch, KernelVersion: v.GetKernel(),
			GitCommit: v.GetRevision(), APIVersion: dockerAPI, MinAPIVersion: dockerAPI,
		}
		doc.Server.Components = []dockertypes.Component{{Name: "Engine", Version: v.GetVersion(), Details: map[string]string{
			"ApiVersion": dockerAPI, "Arch": arch, "BuildTime": "", "Experimental": "false", "GitCommit": v.GetRevision(), "GoVersion": v.GetGo(),
			"KernelVersion": v.GetKernel(), "MinAPIVersion": dockerAPI, "Os": system,
		}}}
		for _, rt := range v.GetRuntimes() {
			doc.Server.Components = append(doc.Server.Components, dockertypes.Component{Name: rt.GetName(), Version: rt.GetVersion()})
		}
		own["Server"] = map[string]any{"Record": Plain(v)}
	}
	return filled(doc, own)
}

// dockerAPI is the version of docker's API that the agent serves: none.
const dockerAPI = ""

func clientVersion(version string) dockertypes.ClientVersion {
	return dockertypes.ClientVersion{
		Version: version, APIVersion: dockerAPI, DefaultAPIVersion: dockerAPI, GoVersion: runtime.Version(), Os: runtime.GOOS, Arch: runtime.GOARCH, Context: "default",
	}
}
