package dockerclients_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/dockerd"
)

// routes are the parts of Traefik's configuration that the test reads.
type routes struct {
	Routers  map[string]struct{ Rule, Service string }
	Services map[string]struct {
		LoadBalancer struct{ Servers []struct{ URL string } }
	}
}

// TestTraefik has Traefik's docker provider read the read socket: a container with labels is a router and a service while it is
// healthy.
func TestTraefik(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		program := filepath.Join(os.Getenv(dockerd.DirEnv), "usr/bin/traefik")
		if _, err := os.Stat(program); err != nil {
			t.Skipf("no Traefik: %v (make e2e-dockerclients builds it)", err)
		}
		socket := filepath.Join(t.TempDir(), "read.sock")
		r := startDocker(t, fmt.Sprintf("read_socket = %q", socket))
		r.docker("network", "create", "site")
		r.docker("create", "--name", "shop", "--network", "site", "-l", "traefik.http.routers.shop.rule=Host(`shop.test`)", "-l", "traefik.http.services.shop.loadbalancer.server.port=8000",
			"--health-cmd", "ls /up", "--health-interval", "200ms", "--health-retries", "1000", "busybox", "sleep", "1000")
		s := r.begin(program, "unix://"+socket)
		s.unrouted("a created container")
		r.docker("start", "shop")
		s.unrouted("an unhealthy container")
		r.docker("exec", "shop", "touch", "/up")
		got := s.routes()
		url := "http://" + r.docker("inspect", "-f", "{{.NetworkSettings.Networks.site.IPAddress}}", "shop") + ":8000"
		if router := got.Routers["shop"]; len(got.Routers) != 1 || router.Rule != "Host(`shop.test`)" || router.Service != "shop" {
			t.Errorf("routers: %+v", got.Routers)
		}
		if list := got.Services["shop"].LoadBalancer.Servers; len(got.Services) != 1 || len(list) != 1 || list[0].URL != url {
			t.Errorf("services: %+v, want one at %s", got.Services, url)
		}
		r.docker("stop", "-t", "0", "shop")
		s.unrouted("a stopped container")
		if err := s.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		s.ends()
		r.docker("rm", "shop")
		r.docker("network", "rm", "site")
		r.empty()
	})
}

// routes waits for Traefik's next configuration.
func (s *session) routes() (got routes) {
	s.r.t.Helper()
	line := s.reads("\n")
	if err := json.Unmarshal([]byte(line), &got); err != nil {
		s.r.t.Fatalf("%v: %q", err, line)
	}
	return got
}

// unrouted asserts that the next configuration has no routes.
func (s *session) unrouted(why string) {
	s.r.t.Helper()
	if got := s.routes(); len(got.Routers)+len(got.Services) != 0 {
		s.r.t.Errorf("routes of %s: %+v", why, got)
	}
}
