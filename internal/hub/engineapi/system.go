package engineapi

import (
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/api/types/swarm"
	"github.com/moby/moby/api/types/system"

	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/hub/engineapi/translate"
	"github.com/longshore/longshore/internal/invalid"
)

// elsewhere are the parts of the Engine API that are a node's business.
var elsewhere = []string{"auth", "build", "commit", "containers", "events", "exec", "grpc", "images", "plugins", "session", "system", "volumes"}

// system serves the hub as a whole.
func (s Server) system(m *routes) {
	m.stream("/_ping", func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Swarm", "active/manager")
		h.Set("Cache-Control", "no-cache, no-store, must-revalidate")
		h.Set("Pragma", "no-cache")
		h.Set("Content-Type", "text/plain; charset=utf-8")
		if r.Method == http.MethodHead {
			h.Set("Content-Length", "0")
			return
		}
		_, _ = w.Write([]byte("OK"))
	})
	m.handle("GET /info", func(*http.Request) (answer, error) { return ok(s.info()) })
	m.handle("GET /version", func(*http.Request) (answer, error) {
		v := system.VersionResponse{
			Version: s.Self.Version, APIVersion: MaxVersion, MinAPIVersion: MinVersion, Os: runtime.GOOS, Arch: runtime.GOARCH, GoVersion: runtime.Version(),
			Components: []system.ComponentVersion{{Name: "longshore-hub", Version: s.Self.Version, Details: map[string]string{"ApiVersion": MaxVersion, "MinAPIVersion": MinVersion}}},
		}
		v.Platform.Name = "longshore-hub"
		return ok(v)
	})
	m.handle("GET /distribution/{name...}", func(*http.Request) (answer, error) {
		return answer{}, notHere("a hub does not query registries: nodes resolve an image's name when they pull it")
	})
	for _, part := range elsewhere {
		no := func(r *http.Request) (answer, error) {
			if kind, name := inspected(r.URL.Path); kind != "" && r.Method == http.MethodGet {
				return answer{}, errdefs.ErrNotFound.WithMessage(fmt.Sprintf("No such %s: %.200s", kind, name))
			}
			return answer{}, notHere("a hub runs no containers and has no images of its own: ask a node for /%s", part)
		}
		m.handle("/"+part, no)
		m.handle("/"+part+"/", no)
	}
	m.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, errdefs.ErrNotFound.WithMessage("page not found"))
	})
}

// inspected returns the kind and name of a path for an object of a node. `docker inspect` looks for a name of any kind
// there, and asks for objects of a Swarm after 404.
func inspected(path string) (kind, name string) {
	part, rest, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	kind, ok := map[string]string{"containers": "container", "images": "image", "volumes": "volume", "plugins": "plugin"}[part]
	name, of := strings.CutSuffix(rest, "/json")
	if !ok || name == "" || of == (part == "volumes") || part != "images" && strings.Contains(name, "/") {
		return "", ""
	}
	return kind, name
}

func (s Server) info() system.Info {
	nodes := s.Records.Nodes()
	cluster := s.cluster()
	return system.Info{
		ID: s.Self.Hub, Name: s.Self.Hostname, ServerVersion: s.Self.Version, OSType: runtime.GOOS, Architecture: runtime.GOARCH, OperatingSystem: "longshore-hub", NCPU: runtime.NumCPU(),
		SystemTime: time.Now().Format(time.RFC3339Nano), Labels: []string{}, DriverStatus: [][2]string{}, Runtimes: map[string]system.RuntimeWithStatus{},
		// The nodes enforce limits, so the client must not print warnings.
		MemoryLimit: true, SwapLimit: true, CPUCfsPeriod: true, CPUCfsQuota: true, CPUShares: true, CPUSet: true, PidsLimit: true, OomKillDisable: true, IPv4Forwarding: true,
		SecurityOptions: []string{}, Warnings: []string{}, CDISpecDirs: []string{}, NGoroutines: runtime.NumGoroutine(),
		Swarm: swarm.Info{
			Error: s.notice(), NodeID: s.Self.Hub, NodeAddr: s.Self.Address, LocalNodeState: swarm.LocalNodeStateActive, ControlAvailable: true, Nodes: len(nodes) + 1, Managers: 1,
			RemoteManagers: []swarm.Peer{{NodeID: s.Self.Hub, Addr: s.Self.Address}}, Cluster: &cluster,
		},
	}
}

// own are the networks that each node has.
var own = []string{"bridge", "host"}

// networks answers with the networks that each node has: a hub has no others.
func (s Server) networks(m *routes) {
	m.handle("GET /networks", func(r *http.Request) (answer, error) {
		f, err := dockerhttp.ParseFilters(r.URL.Query().Get("filters"), "dangling", "driver", "id", "label", "name", "scope", "type")
		if err != nil {
			return answer{}, err
		}
		list := []network.Summary{}
		for _, name := range own {
			n := s.network(name)
			if f.Part("name", name) && f.Prefix("id", name) && f.Exact("driver", name) && f.Exact("scope", "swarm") && f.Exact("type", "builtin") && f.Exact("dangling", "false", "0") && f.All("label", nil) {
				list = append(list, network.Summary{Network: n})
			}
		}
		return ok(list)
	})
	m.handle("GET /networks/{id}", func(r *http.Request) (answer, error) {
		id := r.PathValue("id")
		if !slices.Contains(own, id) {
			return answer{}, notFound("network", id)
		}
		return ok(network.Inspect{Network: s.network(id), Containers: map[string]network.EndpointResource{}})
	})
	m.handle("POST /networks/create", func(r *http.Request) (answer, error) {
		data, err := body(r)
		if err != nil {
			return answer{}, err
		}
		name, driver, err := translate.Network(data)
		if err != nil {
			return answer{}, err
		}
		if driver == "" {
			driver = "bridge"
		}
		return answer{}, invalid.Errorf("network %.80s: a hub makes no networks (driver %.80s); services have each node's own, bridge or host, "+
			"in a stack file: networks: {default: {external: true, name: bridge}}", name, driver)
	})
	no := func(r *http.Request) (answer, error) {
		if id := r.PathValue("id"); !slices.Contains(own, id) {
			return answer{}, notFound("network", id)
		}
		return answer{}, invalid.Errorf("%s is a network of each node: it can be neither removed nor changed", r.PathValue("id"))
	}
	m.handle("DELETE /networks/{id}", no)
	m.handle("POST /networks/{id}/connect", no)
	m.handle("POST /networks/{id}/disconnect", no)
	m.handle("POST /networks/prune", func(*http.Request) (answer, error) {
		return ok(network.PruneReport{NetworksDeleted: []string{}})
	})
}

func (s Server) network(name string) network.Network {
	return network.Network{
		Name: name, ID: name, Created: s.cluster().CreatedAt, Scope: "swarm", Driver: name, EnableIPv4: true, IPAM: network.IPAM{Driver: "default", Config: []network.IPAMConfig{}},
		Options: map[string]string{}, Labels: map[string]string{},
	}
}
