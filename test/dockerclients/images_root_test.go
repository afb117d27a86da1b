package dockerclients_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
)

// create creates a container by the API. Debian's command line does not send all fields.
func (r *rig) create(name, body string) {
	r.t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", r.socket)
	}}}
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, "http://docker/containers/create?name="+name, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if text, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusCreated {
		r.t.Fatalf("create %s: %s, %v: %s", name, resp.Status, err, text)
	}
}

// TestMountsOfImages mounts an image and a part of it. The container keeps both when the image is removed, when the
// agent dies, and when it is started again.
func TestMountsOfImages(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := startDocker(t)
		r.docker("run", "--name", "maker", "busybox", "sh", "-c", "echo whole >/file; mkdir /dir; echo part >/dir/file")
		r.docker("commit", "maker", "mounted:1")
		r.docker("rm", "maker")
		const mount = `{"Type":"image","Source":"mounted:1","Target":%q,"ImageOptions":{"Subpath":%q}}`
		r.create("user", `{"Image":"busybox","Cmd":["sh","-c","cat /whole/file /part/file; touch /whole/new || echo refused; trap 'exit 0' TERM; sleep 1000 & wait"],
			"HostConfig":{"IpcMode":"none","Mounts":[`+fmt.Sprintf(mount, "/whole", "")+`,`+fmt.Sprintf(mount, "/part", "dir")+`]}}`)
		r.docker("start", "user")
		s := r.begin(r.program, "logs", "-f", "user")
		s.reads("whole\npart\n")
		s.reads("refused\n")
		r.fails(1, "is using its referenced image", "rmi", "mounted:1")
		if code, out, _ := r.output("", r.program, "exec", "user", "grep", " /dev/shm ", "/proc/mounts"); code != 1 {
			t.Errorf("IpcMode none has %q", out)
		}
		r.docker("stop", "user")
		if code, _ := s.ends(); code != 0 {
			t.Errorf("logs -f ends with %d", code)
		}
		r.docker("rmi", "-f", "mounted:1")
		r.docker("start", "user")
		r.node.Kill()
		r.node.Up()
		r.shows("whole\npart", "exec", "user", "cat", "/whole/file", "/part/file")
		r.docker("restart", "user")
		r.shows("whole\npart", "exec", "user", "cat", "/whole/file", "/part/file")
		r.docker("rm", "-f", "user")
		r.shows("busybox:latest", "images", "-a", "--format", "{{.Repository}}:{{.Tag}}")
		r.empty()
	})
}
