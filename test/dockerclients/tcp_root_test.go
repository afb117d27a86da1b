package dockerclients_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/tlsconf/tlsconftest"
)

// TestDockerByTCP runs containers by a TCP listener: with the client's certificate, also with input, and not without.
func TestDockerByTCP(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		ours, others := tlsconftest.New(t), tlsconftest.New(t)
		cert, key := ours.Issue("node")
		r := startDocker(t, `tcp = "127.0.0.1:2376"`, fmt.Sprintf("tls_cert = %q\ntls_key = %q\ntls_client_ca = %q", cert, key, ours.File))
		by := func(a *tlsconftest.Authority, args ...string) []string {
			cert, key := a.Issue("client")
			return append([]string{"--tlsverify", "--tlscacert", ours.File, "--tlscert", cert, "--tlskey", key, "-H", "tcp://localhost:2376"}, args...)
		}
		r.shows("out", by(ours, "run", "--rm", "busybox", "echo", "out")...)
		if got := r.run("one\ntwo\n", by(ours, "run", "--rm", "-i", "busybox", "wc", "-l")...); got != "2" {
			t.Errorf("run -i counts %q lines", got)
		}
		s := r.terminal(by(ours, "run", "-it", "--name", "term", "busybox", "sh")...)
		s.reads("#")
		s.writes("echo $((40+2)); exit 5\n")
		s.reads("42")
		if code, rest := s.ends(); code != 5 {
			t.Errorf("run -it: exit code %d, %q", code, rest)
		}
		r.shows("term", by(ours, "rm", "term")...)
		r.fails(1, "localhost:2376", by(others, "ps")...) // the refusal, or the end of the connection
		r.fails(1, "HTTP", "-H", "tcp://localhost:2376", "ps")
		r.empty()
	})
}

// TestDockerPyByWebsocket runs testdata/attachws.py.
func TestDockerPyByWebsocket(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		ours := tlsconftest.New(t)
		cert, key := ours.Issue("node")
		r := start(t, `tcp = "127.0.0.1:2376"`, fmt.Sprintf("tls_cert = %q\ntls_key = %q\ntls_client_ca = %q", cert, key, ours.File))
		if code, _, errs := r.output("", debianPython, "-c", "import docker, websocket"); code != 0 {
			t.Skipf("no docker-py with websockets, Debian's python3-docker: %s", errs)
		}
		script, err := filepath.Abs("testdata/attachws.py")
		if err != nil {
			t.Fatal(err)
		}
		cert, key = ours.Issue("client")
		pull := "import docker; docker.APIClient(base_url='unix://" + r.socket + "').pull('busybox')"
		for _, args := range [][]string{{"-c", pull}, {script, ours.File, cert, key, "https://localhost:2376"}} {
			if code, out, errs := r.output("", debianPython, args...); code != 0 {
				t.Fatalf("exit code %d\n%s%s", code, out, errs)
			}
		}
		r.empty()
	})
}
