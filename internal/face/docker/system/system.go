// Package system answers for the node as a whole in Docker's API: /_ping, /version, /info and /system/df, and the refusals of
// plugins and of the objects of Swarm managers, which a node does not have. Start at Server.
package system

import (
	"context"
	"io"
	"net/http"
	"runtime"
	"strings"

	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/dockertypes"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/flight"
	"github.com/longshore/longshore/internal/hostinfo"
)

// Build has the versions that clients see.
type Build struct {
	// Version is the version of dockerd that the API follows, such as 28.5.2. Programs compare it.
	Version string
	// Agent is the agent's own version, Commit that of its source and Time the time of its build, "" if unknown.
	Agent, Commit, Time string
}

// Server describes the node. Engine, Build and Versions are required.
type Server struct {
	Engine *engine.Client
	Build  Build
	// Versions are those of the API.
	Versions dockerhttp.Range
	// CgroupDriver is cgroupfs or systemd; "" is cgroupfs.
	CgroupDriver string
	// CDIDirs are the directories with the descriptions of CDI devices.
	CDIDirs []string
	// Registries returns the settings of registries; nil returns those without any setting.
	Registries func() *dockertypes.RegistryConfig
	// Swarm returns the node's membership of a Swarm, as a worker; nil is none.
	Swarm func() dockertypes.Swarm
	// Readers returns the number of clients that read events; nil returns 0.
	Readers func() int
	// Images, Containers and Volumes return the lists of these objects, in the form of their requests, for /system/df.
	// Those of containers have their sizes, those of images the numbers of their containers. nil returns none.
	Images     func(ctx context.Context, api dockerhttp.Version) (any, error)
	Containers func(ctx context.Context, api dockerhttp.Version) (any, error)
	Volumes    func(ctx context.Context) ([]*dockertypes.Volume, error)

	usage flight.Group[measurement, *dockertypes.DiskUsage]
}

// Routes adds the handlers.
func (s *Server) Routes(m *dockerhttp.Mux) {
	m.Handle("GET", "/_ping", s.ping)
	m.Handle("HEAD", "/_ping", s.ping)
	m.Handle("GET", "/version", s.version)
	m.Handle("GET", "/info", s.info)
	m.Handle("GET", "/system/df", s.df)
	s.refusals(m)
}

// ping answers OK. Clients read the API's version, the builder and the membership of a Swarm from the header. The old builder is
// named, because some clients would otherwise use BuildKit's API.
func (s *Server) ping(w http.ResponseWriter, r *dockerhttp.Request) error {
	h := w.Header()
	h.Set("Builder-Version", "1")
	h.Set("Cache-Control", "no-cache, no-store, must-revalidate")
	h.Set("Pragma", "no-cache")
	h.Set("Content-Type", "text/plain; charset=utf-8")
	state := s.swarm().LocalNodeState
	if state == active {
		state += "/worker"
	}
	h.Set("Swarm", state)
	if r.Method == http.MethodHead {
		h.Set("Content-Length", "0")
		w.WriteHeader(http.StatusOK)
		return nil
	}
	_, err := io.WriteString(w, "OK")
	return err
}

// versionOf returns the version of a runtime without the name that its program prints before it.
func versionOf(rt engine.RuntimeInfo) string {
	return strings.TrimPrefix(rt.Features.Version, rt.Name+" ")
}

// version answers with the versions of the API and of the node's programs. The engine has the number of a dockerd.
func (s *Server) version(w http.ResponseWriter, r *dockerhttp.Request) error {
	v := dockertypes.ServerVersion{
		Platform: dockertypes.PlatformInfo{Name: "Longshore"}, Version: s.Build.Version,
		APIVersion: s.Versions.Max.String(), MinAPIVersion: s.Versions.Min.String(), GitCommit: s.Build.Commit, BuildTime: s.Build.Time,
		GoVersion: runtime.Version(), Os: runtime.GOOS, Arch: runtime.GOARCH, KernelVersion: hostinfo.Kernel(),
	}
	v.Components = []dockertypes.Component{
		{Name: "Engine", Version: v.Version, Details: map[string]string{
			"ApiVersion": v.APIVersion, "MinAPIVersion": v.MinAPIVersion, "GitCommit": v.GitCommit, "GoVersion": v.GoVersion, "Os": v.Os, "Arch": v.Arch,
			"KernelVersion": v.KernelVersion, "BuildTime": v.BuildTime, "Experimental": "false",
		}},
		{Name: "longshore", Version: s.Build.Agent, Details: map[string]string{"GitCommit": s.Build.Commit}},
	}
	list, err := s.Engine.Runtimes(r.Context())
	if err != nil {
		return err
	}
	for _, rt := range list {
		if rt.Problem == "" {
			v.Components = append(v.Components, dockertypes.Component{Name: rt.Name, Version: versionOf(rt)})
		}
	}
	return dockerhttp.Reply(w, http.StatusOK, v)
}
